"""The same small shards with an index of version 1 and of version 2: made by the record writers, without a stage.

Where samples lie is found by reading the files, not taken from the writers: what is compared is read independently.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, IndexPart, ShardEntry, ShardManifest, SplitEntry
from contracts.artifacts.shard_table import TABLE_NAME, pack_table
from records.index import INDEX_NAME, RECORD, write_index
from records.index_parts import ROW, checksum_rows, write_part
from records.sample import ChecksumStream, Sample
from records.tar import TarWriter
from records.tfrecord import TFRecordWriter

CLASSES = ("blue", "green", "red")


class Shard(NamedTuple):
    """One shard to write: its split, and its samples."""

    split: str
    samples: list[Sample]


def make_sample(number: int, side: int = 16) -> Sample:
    """Return a small picture of noise on a colour, as PNG or JPEG."""
    label = number % 3
    pixels = np.random.default_rng(number).integers(0, 80, (side, side, 3), dtype=np.uint8)
    pixels[..., 2 - label] += 150
    stream = io.BytesIO()
    kind = "png" if number % 2 else "jpeg"
    Image.fromarray(pixels).save(stream, kind)
    key = hashlib.md5(str(number).encode()).digest()
    path = f"{CLASSES[label]}/{number:03d} x.{kind}"
    return Sample(key, stream.getvalue(), kind, label, CLASSES[label], path, side, side, "RGB")


def plan(train: int = 5, each: int = 8) -> list[Shard]:
    """Return training shards, one of them without samples, and two of validation and test each."""
    numbers = iter(range(10_000))
    sizes = [("train", each + n) for n in range(train)] + [
        ("validation", 5),
        ("validation", 4),
        ("test", 4),
        ("test", 3),
    ]
    return [Shard(split, [make_sample(next(numbers)) for _ in range(size)]) for split, size in sizes]


def write_versions(
    folder: Path, *, shard_format: str = "webdataset", shards: list[Shard] | None = None, table: bool = False
) -> tuple[Path, Path]:
    """Write the shards twice, below folder/v1 and folder/v2; return both folders.

    Args:
        folder: Where.
        shard_format: webdataset or tfrecord.
        shards: What they hold, split by split.
        table: Whether the entries of version 2 are in a packed table.
    """
    shards = plan() if shards is None else shards
    suffix = ".tar" if shard_format == "webdataset" else ".tfrecord"
    places = (folder / "v1", folder / "v2")
    for place in places:
        place.mkdir(parents=True)
    entries: list[ShardEntry] = []
    records, rows, first = [], [], 0
    for number, shard in enumerate(shards):
        stream = io.BytesIO()
        writer = (TarWriter if shard_format == "webdataset" else TFRecordWriter)(ChecksumStream(stream))
        for sample in shard.samples:
            writer.write(sample)
        writer.close()
        content = stream.getvalue()
        name = f"{shard.split}-{number:05d}{suffix}"
        found = (_places_in_tar if shard_format == "webdataset" else _places_in_tfrecord)(content, shard.samples)
        record, row = np.zeros(len(found), RECORD), np.zeros(len(found), ROW)
        for at, (sample, image_at, begin, end) in enumerate(
            zip(shard.samples, *zip(*found, strict=True), strict=True) if found else ()
        ):
            crc = google_crc32c.value(sample.content)
            record[at] = (number, sample.label, image_at, len(sample.content), crc, sample.key)
            row[at] = (begin, end - begin, google_crc32c.value(content[begin:end]), sample.key)
        columns = {
            "label": np.array([sample.label for sample in shard.samples], "<i4"),
            "source": np.array([int.from_bytes(sample.key[:8], "little") for sample in shard.samples], "<u8"),
        }
        for place in places:
            (place / name).write_bytes(content)
        entry = ShardEntry(
            name=name,
            bytes=len(content),
            crc32c=storage.crc32c(content),
            split=shard.split,
            first=first,
            samples=len(found),
            rows_crc32c=checksum_rows(row, columns),
        )
        entries.append(entry)
        records.append(record)
        rows.append((shard.split, row, columns))
        first += len(found)
    write_index(places[0] / INDEX_NAME, records)
    parts = _write_parts(places[1], rows)
    for version, place in enumerate(places, start=1):
        uri = storage.normalise(place)
        fields: dict[str, Any] = {"shards": entries}
        if version == 1:
            fields["index"] = FileEntry.of(uri, INDEX_NAME)
        else:
            fields |= {"index_parts": parts, "format_version": 2}
        if version == 2 and table:
            (place / TABLE_NAME).write_bytes(pack_table(entries))
            fields |= {"shards": [], "shard_table": FileEntry.of(uri, TABLE_NAME)}
        manifest = ShardManifest(
            fingerprint="0123456789abcdef",
            format=shard_format,  # type: ignore[arg-type]
            seed=0,
            classes=list(CLASSES),
            splits=_describe_splits(shards),
            rejected=[],
            mean=[0.5] * 3,
            std=[0.25] * 3,
            **fields,
        )
        (place / MANIFEST_NAME).write_bytes(manifest.to_json())
    return places


def _write_parts(folder: Path, rows: list[tuple[str, Any, dict[str, Any]]]) -> list[IndexPart]:
    """Write parts of at most two shards of one split."""
    parts, first, number = [], 0, 0
    for _, group in groupby(rows, lambda row: row[0]):
        held = list(group)
        for at in range(0, len(held), 2):
            chosen = held[at : at + 2]
            path = folder / f"index-{number:05d}.bin"
            columns = {name: np.concatenate([each[2][name] for each in chosen]) for name in ("label", "source")}
            write_part(path, np.concatenate([each[1] for each in chosen]), columns)
            entry = FileEntry.of(storage.normalise(folder), path.name)
            samples = sum(len(each[1]) for each in chosen)
            parts.append(IndexPart(**entry.model_dump(), first=first, samples=samples))
            first, number = first + samples, number + 1
    return parts


def _describe_splits(shards: list[Shard]) -> dict[str, SplitEntry]:
    splits, first = {}, 0
    for split in ("train", "validation", "test"):
        labels = [sample.label for shard in shards if shard.split == split for sample in shard.samples]
        counts = np.bincount(labels, minlength=3).tolist()
        splits[split] = SplitEntry(first=first, samples=len(labels), source_bytes=1, samples_by_class=counts)
        first += len(labels)
    return splits


def _places_in_tar(content: bytes, samples: list[Sample]) -> list[tuple[int, int, int]]:
    """Return offset of the image, and beginning and end of the whole sample."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for _, group in groupby(archive, lambda member: member.name.partition(".")[0]):
            members = list(group)
            last = members[-1]
            end = last.offset_data + last.size + -last.size % 512
            found.append((members[0].offset_data, members[0].offset, end))
    assert len(found) == len(samples)
    return found


def _places_in_tfrecord(content: bytes, samples: list[Sample]) -> list[tuple[int, int, int]]:
    found, at = [], 0
    for sample in samples:
        (length,) = struct.unpack_from("<Q", content, at)
        found.append((content.index(sample.content, at), at + 12, at + 12 + length))
        at += length + 16
    assert at == len(content)
    return found
