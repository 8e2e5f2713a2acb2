"""Many shards of random bytes with their index and manifest: what a reader of bytes needs, made in moments."""

import hashlib
from pathlib import Path

import google_crc32c
import numpy as np

from contracts.artifacts import MANIFEST_NAME, FileEntry, ShardEntry, ShardManifest, SplitEntry
from records.index import INDEX_NAME, RECORD, write_index


def write_shards(folder: Path, *, shards: int, samples: int, sample_bytes: int) -> ShardManifest:
    """Write a training split of `shards` shards with `samples` samples of about `sample_bytes` each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    parts, entries = [], []
    for number in range(shards):
        sizes = random.integers(sample_bytes * 3 // 4, sample_bytes * 5 // 4, samples)
        content = bytearray()
        records = np.zeros(samples, RECORD)
        for row, size in enumerate(sizes.tolist()):
            image = random.bytes(size)
            content += bytes(64)
            key = hashlib.md5(f"{number}/{row}".encode()).digest()
            records[row] = (number, row % 10, len(content), size, google_crc32c.value(image), key)
            content += image
        name = f"train-{number:05d}.tar"
        (folder / name).write_bytes(content)
        crc32c = f"{google_crc32c.value(bytes(content)):08x}"
        entries.append(
            ShardEntry(
                name=name, bytes=len(content), crc32c=crc32c, split="train", first=number * samples, samples=samples
            )
        )
        parts.append(records)
    write_index(folder / INDEX_NAME, parts)
    total = shards * samples
    empty = SplitEntry(first=total, samples=0, source_bytes=0, samples_by_class=[0] * 10)
    train = SplitEntry(first=0, samples=total, source_bytes=0, samples_by_class=[total // 10] * 10)
    manifest = ShardManifest(
        fingerprint="0" * 16,
        made_from={},
        format="webdataset",
        seed=0,
        classes=[str(label) for label in range(10)],
        splits={"train": train, "validation": empty, "test": empty},
        shards=entries,
        index=FileEntry.of(folder.absolute().as_uri(), INDEX_NAME),
        rejected=[],
        mean=[0.5] * 3,
        std=[0.5] * 3,
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return manifest
