"""A hundred million samples: what opening them takes, and what a loader process holds while it reads all over them."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from contracts.artifacts import MANIFEST_NAME
from records.index import INDEX_NAME, RECORD

SAMPLES = 100_000_000
MEBIBYTE = 1 << 20

# A child: its memory is its own. It says what opening read and took, and what each loader process grew to.
CODE = """
import json, random, sys
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
from contracts.artifacts import ShardManifest
from trainer.data.reader import ShardReader

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])

class Origins(Dataset):
    begun = None

    def __getitem__(self, places):
        self.begun = self.begun or resident()
        for place in places:
            reader.origin_of(place)
        return resident() - self.begun

memory = resident()
manifest = ShardManifest.load(sys.argv[1])
held = {"manifest": resident() - memory}
memory, read = resident(), bytes_read()
reader = ShardReader(sys.argv[1], manifest, "train")
opened = {"bytes": bytes_read() - read, "kibibytes": resident() - memory, "samples": len(reader)}
random.seed(0)
places = [random.choices(range(len(reader)), k=20_000) for _ in range(8)]
loader = DataLoader(Origins(), batch_size=None, sampler=places, num_workers=2, collate_fn=lambda found: found)
print(json.dumps({**held, **opened, "worker": max(loader)}))
"""


def write_shards(folder: Path, shards: int) -> None:
    """Write a manifest, and an index that is a hole: no shard is there."""
    each = SAMPLES // shards
    images = {"formats": {"JPEG": each}, "modes": {"RGB": each}, "width": [64, 4000], "height": [64, 4000]}
    entries = [
        {
            "name": f"train-{number:05d}.tar",
            "bytes": 128 * MEBIBYTE,
            "crc32c": f"{number:08x}",
            "split": "train",
            "first": number * each,
            "samples": each,
            "images": images,
        }
        for number in range(shards)
    ]
    size = 64 + SAMPLES * RECORD.itemsize
    with (folder / INDEX_NAME).open("wb") as stream:
        stream.write(struct.pack("<8sIIQ40x", b"SHARDIDX", 1, RECORD.itemsize, SAMPLES))
        stream.truncate(size)
    split: dict[str, Any] = {"first": 0, "samples": SAMPLES, "source_bytes": 0, "samples_by_class": [SAMPLES]}
    empty = {**split, "first": SAMPLES, "samples": 0, "samples_by_class": [0]}
    document = {
        "kind": "shards",
        "format_version": 2,
        "fingerprint": "0" * 16,
        "format": "webdataset",
        "seed": 0,
        "classes": ["one"],
        "splits": {"train": split, "validation": empty, "test": empty},
        "shards": entries,
        "index": {"name": INDEX_NAME, "bytes": size, "crc32c": "00000000"},
        "rejected": [],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
    (folder / MANIFEST_NAME).write_text(json.dumps(document))


def test_a_reader_of_many_samples_and_its_processes_stay_small(tmp_path: Path) -> None:
    write_shards(tmp_path, 1000)
    done = subprocess.run([sys.executable, "-c", CODE, tmp_path.as_uri()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["samples"] == SAMPLES
    # What makes it quick on any machine: nothing but the header is read.
    assert found["bytes"] < MEBIBYTE
    assert found["kibibytes"] < 200 * 1024
    # After 80,000 records from all over it: a map would have touched as many pages, and their neighbours.
    assert found["worker"] < 200 * 1024
