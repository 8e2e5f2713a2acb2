"""What a rank holds and waits for when it opens the manifest of many shards: `python -m benchmarks.scale_manifest`.

Each case is a process of its own. `list` is a document with all entries, as index version 1 has it; `table` a packed
table beside the document, above 10,000 shards. `load` is the manifest alone; `rank` also opens a reader of the training
split in a local folder, and reads the records of some samples (no shard is there: only the index is).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.figures import describe_machine
from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    FileEntry,
    ImageStatistics,
    IndexPart,
    ShardEntry,
    ShardManifest,
    SplitEntry,
)
from contracts.artifacts.shard_table import TABLE_NAME, pack_table
from records.index_parts import ROW, write_part

SAMPLES = 100
"""Samples per shard; the number of shards is what costs."""
SHARDS_PER_PART = 256
SHARD_BYTES = 128 << 20

CHILD = """
import json, sys, time
from pathlib import Path

def peak():
    # Of this program: what the kernel counts for a process (ru_maxrss) begins with its parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

begun = time.perf_counter()
import numpy
from contracts.artifacts import ShardManifest
if sys.argv[2] == "rank":
    from contracts.config import DataSection
    from trainer.data.order.resolve import make_order, resolve_order
    from trainer.data.reader import ShardReader
imports, memory = time.perf_counter() - begun, peak()
begun = time.perf_counter()
manifest = ShardManifest.load(sys.argv[1])
if sys.argv[2] == "rank":
    reader = ShardReader(sys.argv[1], manifest, "train")
    for order in ("blocks", "full"):
        choice = resolve_order(DataSection(order=order), sys.argv[1], manifest, None)
        made = make_order(choice.order, sys.argv[1], manifest, seed=0, index=reader.index)
    for place in made.places(0, 0, 256).tolist():
        reader.origin_of(place)
seconds = time.perf_counter() - begun
print(json.dumps({"seconds": round(seconds, 3), "peak_mb": peak() // 1024, "added_mb": (peak() - memory) // 1024,
    "imports_s": round(imports, 3), "shards": len(manifest.shards)}))
"""


def main() -> None:
    """Measure all cases and print them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    shards = parser.parse_args().shards
    print(json.dumps({**describe_machine("pydantic", "numpy"), **measure_manifest(shards)}, indent=1))


def measure_manifest(shards: int) -> dict[str, object]:
    """Return what a process needs that opens a manifest, with its entries as a list and as a table."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        for kind in ("list", "table"):
            folder = Path(name) / kind
            write_folder(folder, shards, table=kind == "table")
            found[f"{kind}_bytes"] = {path.name: path.stat().st_size for path in folder.glob("[ms]*")}
            for what in ("load", "rank"):
                found[f"{kind}_{what}"] = measure(folder, what)
    return found


def measure(folder: Path, what: str) -> dict[str, float]:
    """Return seconds and memory of a process that opens the shards."""
    command = [sys.executable, "-c", CHILD, storage.normalise(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def write_folder(folder: Path, shards: int, *, table: bool) -> None:
    """Write manifest and index of shards that are not there."""
    folder.mkdir()
    images = ImageStatistics(formats={"jpeg": SAMPLES}, modes={"RGB": SAMPLES}, width=[64, 4000], height=[64, 4000])
    entries = [
        ShardEntry(
            name=f"train-{number:06d}-0123abcd.tar",
            bytes=SHARD_BYTES + number,
            crc32c=f"{number * 2654435761 % 2**32:08x}",
            split="train",
            first=number * SAMPLES,
            samples=SAMPLES,
            rows_crc32c=f"{number:08x}",
            images=None if table else images,
        )
        for number in range(shards)
    ]
    uri, parts = storage.normalise(folder), []
    for number, first in enumerate(range(0, shards, SHARDS_PER_PART)):
        count = min(SHARDS_PER_PART, shards - first) * SAMPLES
        name = f"index-{number:05d}.bin"
        columns = {"label": np.zeros(count, "<i4"), "source": np.zeros(count, "<u8")}
        write_part(folder / name, np.zeros(count, ROW), columns)
        parts.append(IndexPart(**FileEntry.of(uri, name).model_dump(), first=first * SAMPLES, samples=count))
    packed: FileEntry | None = None
    if table:
        (folder / TABLE_NAME).write_bytes(pack_table(entries))
        packed = FileEntry.of(uri, TABLE_NAME)
    total = shards * SAMPLES
    empty = SplitEntry(first=total, samples=0, source_bytes=0, samples_by_class=[0])
    manifest = ShardManifest(
        fingerprint="0" * 16,
        format_version=2,
        format="webdataset",
        seed=0,
        classes=["one"],
        splits={
            "train": SplitEntry(first=0, samples=total, source_bytes=0, samples_by_class=[total]),
            "validation": empty,
            "test": empty,
        },
        shards=[] if table else entries,
        shard_table=packed,
        index_parts=parts,
        rejected=[],
        mean=[0.5] * 3,
        std=[0.5] * 3,
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())


if __name__ == "__main__":
    main()
