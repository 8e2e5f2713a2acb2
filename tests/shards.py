"""Shards that tests write by hand: as the shard stage does, without its run."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, ShardEntry, ShardManifest, Shards, SplitEntry
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS
from records import tar, tfrecord
from records.index import NO_LABEL, ROW, pack_index
from records.sample import Sample

FORMATS: dict[str, Any] = {"webdataset": tar, "tfrecord": tfrecord}
_PNG = b"\x89PNG\r\n\x1a\n"


def key_of_path(path: str) -> bytes:
    """Return the key of a sample."""
    return hashlib.blake2b(path.encode(), digest_size=16).digest()


def write_shards(
    folder: Path, splits: dict[str, Sequence[Sequence[Sample]]], *, format: str = "webdataset", **fields: Any
) -> ShardManifest:
    """Write shards with their indices, and the manifest.

    Args:
        folder: Its folder.
        splits: By name, the samples of each shard.
        format: webdataset or tfrecord.
        **fields: Of the manifest; `classes` at least.
    """
    folder.mkdir(parents=True, exist_ok=True)
    uri, entries, described, first = storage.normalise(folder), [], {}, 0
    hashed, module = hashlib.sha256(), FORMATS[format]
    for split in SPLITS:
        labels: list[int] = []
        split_first = first
        for number, samples in enumerate(splits.get(split, ())):
            name = f"{split}-00000000-{number:05d}{module.SUFFIX}"
            rows = np.zeros(len(samples), ROW)
            content = bytearray()
            for row, sample in zip(rows, samples, strict=True):
                framed = module.frame(sample)
                row["offset"], row["size"] = len(content) + len(framed.head), len(framed.body)
                row["crc32c"] = google_crc32c.value(framed.body)
                row["label"] = NO_LABEL if sample.labels is not None else sample.label
                row["key"], row["source"] = sample.key, google_crc32c.value(sample.content)
                labels += [sample.label] if sample.labels is None else sample.labels
                content += b"".join(framed)
            (folder / name).write_bytes(content + module.END)
            (folder / index_name(name)).write_bytes(pack_index(rows))
            file, index = FileEntry.of(uri, name), FileEntry.of(uri, index_name(name))
            hashed.update(file.crc32c.encode())
            entries.append(ShardEntry(**file.model_dump(), split=split, first=first, samples=len(samples), index=index))
            first += len(samples)
        described[split] = SplitEntry(
            first=split_first,
            samples=first - split_first,
            source_bytes=1,
            samples_by_class=[labels.count(label) for label in range(len(fields["classes"]))],
        )
    given = {"fingerprint": hashed.hexdigest()[:16], "format": format, "seed": 0, "rejected": []}
    manifest = ShardManifest(**{**given, **fields}, splits=described, shards=Shards.of(entries))
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return manifest


def picture_sample(path: str, content: bytes, label: int, class_name: str, **fields: Any) -> Sample:
    """Return the sample of an image file."""
    with Image.open(io.BytesIO(content)) as image:
        width, height, mode, kind = image.width, image.height, image.mode, str(image.format).lower()
    return Sample(key_of_path(path), content, kind, label, class_name, path, width, height, mode, **fields)


def write_random_shards(folder: Path, *, shards: int, samples: int, sample_bytes: int) -> ShardManifest:
    """Write a training split of `shards` shards with `samples` samples of `sample_bytes` random bytes each."""
    random = np.random.default_rng(0)

    def sample(number: int, row: int) -> Sample:
        path = f"{row % 10}/{number}-{row}.png"
        return Sample(
            key_of_path(path), _PNG + random.bytes(sample_bytes), "png", row % 10, str(row % 10), path, 0, 0, ""
        )

    train = [[sample(number, row) for row in range(samples)] for number in range(shards)]
    classes = [str(label) for label in range(10)]
    return write_shards(folder, {"train": train}, classes=classes, mean=[0.5] * 3, std=[0.5] * 3)
