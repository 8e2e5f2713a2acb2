"""Small shards that are written by records/ alone, without a stage."""

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
from records.index import ROW, pack_index
from records.sample import Sample

CLASSES = ["blue", "green", "red"]
FORMATS = ("webdataset", "tfrecord")
_MODULES: dict[str, Any] = {"webdataset": tar, "tfrecord": tfrecord}


def make_sample(number: int, side: int = 16) -> Sample:
    """Return a small picture of noise on the colour of its class, as PNG or JPEG."""
    label = number % 3
    pixels = np.random.default_rng(number).integers(0, 80, (side, side, 3), dtype=np.uint8)
    pixels[..., 2 - label] += 150
    stream = io.BytesIO()
    kind = "png" if number % 2 else "jpeg"
    Image.fromarray(pixels).save(stream, kind)
    key = hashlib.md5(str(number).encode()).digest()
    path = f"{CLASSES[label]}/{number:03d} x.{kind}"
    return Sample(key, stream.getvalue(), kind, label, CLASSES[label], path, side, side, "RGB")


def frame(sample: Sample, shard_format: str) -> bytes:
    """Return the body of a sample."""
    body: bytes = _MODULES[shard_format].frame(sample).body
    return body


def write_shards(
    folder: Path, shard_format: str = "webdataset", shards: Sequence[tuple[str, Sequence[Sample]]] = (), **fields: Any
) -> ShardManifest:
    """Write shards of a split and samples each, their indices and the manifest; unset: 3 and 2 shards of 24 samples.

    Args:
        folder: Folder to write.
        shard_format: webdataset or tfrecord.
        shards: Split and samples of each, in the order of the splits.
        fields: Of the manifest.
    """
    if not shards:
        numbers = iter(range(100))
        sizes = (("train", 6), ("train", 0), ("train", 7), ("validation", 5), ("test", 6))
        shards = [(split, [make_sample(next(numbers)) for _ in range(size)]) for split, size in sizes]
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[ShardEntry] = []
    labels: dict[str, list[int]] = {split: [] for split in SPLITS}
    for number, (split, samples) in enumerate(shards):
        content, rows = b"", []
        for sample in samples:
            framed = _MODULES[shard_format].frame(sample)
            at, crc32c = len(content) + len(framed.head), google_crc32c.value(framed.body)
            rows.append((at, len(framed.body), crc32c, sample.label, sample.key, 0, 0))
            content += b"".join(framed)
        content += _MODULES[shard_format].END
        index = pack_index(np.array(rows, ROW))
        name = f"{split}-{number:05d}{_MODULES[shard_format].SUFFIX}"
        (folder / name).write_bytes(content)
        (folder / index_name(name)).write_bytes(index)
        entries.append(
            ShardEntry(
                name=name,
                bytes=len(content),
                crc32c=storage.crc32c(content),
                split=split,
                first=sum(map(len, labels.values())),
                samples=len(samples),
                index=FileEntry(name=index_name(name), bytes=len(index), crc32c=storage.crc32c(index)),
            )
        )
        labels[split] += [sample.label for sample in samples]
    splits, first = {}, 0
    for split, own in labels.items():
        counts = [own.count(place) for place in range(len(CLASSES))]
        splits[split] = SplitEntry(first=first, samples=len(own), source_bytes=0, samples_by_class=counts)
        first += len(own)
    values = {"classes": CLASSES, "fingerprint": "f", "format": shard_format, "seed": 0, "rejected": [], **fields}
    manifest = ShardManifest.model_validate({**values, "splits": splits, "shards": Shards.of(entries)})
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return manifest
