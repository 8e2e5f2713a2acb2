"""A hundred million samples in a hundred thousand shards: what a process needs before it reads the first."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from records.index import INDEX_NAME, RECORD

SHARDS, SAMPLES_A_SHARD = 100_000, 1000
MEBIBYTE = 1 << 20

OPEN = """
import resource, sys, time

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

import torch
from contracts.config import DataSection
from trainer.cursor import slot_requests
from trainer.data.reader import ShardReader
from trainer.order import make_order, resolve_order
from trainer.shards import load_shards
before, started, used = peak(), time.perf_counter(), time.process_time()
data = DataSection(order=sys.argv[2])
manifest = load_shards(sys.argv[1], data)
loaded = time.process_time() - used
reader = ShardReader(sys.argv[1], manifest, "train", data)
order = make_order(resolve_order(data, sys.argv[1], manifest, None).order, sys.argv[1], manifest, seed=1)
reader.follow(order, global_batch_size=256)
requests = slot_requests(256 * 1000, order=order, epochs=1, global_batch_size=256, slot_size=32, rank=0, ranks=8)
places = next(requests).samples
assert len(reader) == 100_000_000 and len(places) == 32
print(time.process_time() - used, loaded, time.perf_counter() - started, peak() - before)
"""


def write_shards(folder: Path) -> ShardManifest:
    """Write a manifest, and an index that is a hole: no shard is there."""

    def write_shard(number: int) -> dict[str, Any]:
        return {
            "name": f"train-{number:05d}.tar",
            "bytes": 128 * MEBIBYTE,
            "crc32c": f"{number:08x}",
            "split": "train",
            "first": number * SAMPLES_A_SHARD,
            "samples": SAMPLES_A_SHARD,
            "images": {
                "formats": {"JPEG": 1000},
                "modes": {"RGB": 990, "L": 10},
                "width": [64, 4000],
                "height": [64, 4000],
            },
        }

    samples = SHARDS * SAMPLES_A_SHARD
    index = {"name": INDEX_NAME, "bytes": 64 + samples * RECORD.itemsize, "crc32c": "00000000"}
    with (folder / INDEX_NAME).open("wb") as stream:
        stream.write(struct.pack("<8sIIQ40x", b"SHARDIDX", 1, RECORD.itemsize, samples))
        stream.truncate(index["bytes"])
    split = {"first": 0, "samples": samples, "source_bytes": 0, "samples_by_class": [samples // 1000] * 1000}
    empty = {**split, "samples": 0, "samples_by_class": [0] * 1000}
    document = {
        "kind": "shards",
        "fingerprint": "0" * 16,
        "made_from": {},
        "format": "webdataset",
        "seed": 0,
        "classes": [f"n{number:08d}" for number in range(1000)],
        "splits": {"train": split, "validation": empty, "test": empty},
        "shards": [write_shard(number) for number in range(SHARDS)],
        "index": index,
        "rejected": [],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
    (folder / MANIFEST_NAME).write_text(json.dumps(document))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["full", "blocks"])
def test_it_opens_in_little_memory(tmp_path: Path, order: str) -> None:
    write_shards(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, storage.normalise(tmp_path), order], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds, loaded, wall, kibibytes = map(float, done.stdout.split())
    print(
        f"{order}: {seconds:.2f} s of a processor, {loaded:.2f} of them for the manifest, {wall:.2f} s in all, "
        f"{kibibytes / 1024:.0f} MiB"
    )
    assert kibibytes < 200 * 1024
