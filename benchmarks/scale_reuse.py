"""The reuse check of a finished output in a bucket: seconds, requests and memory by its number of shards.

    python benchmarks/scale_reuse.py                     # 10,000 and 100,000 shards: about a minute
    python benchmarks/scale_reuse.py --shards 100000

The objects are rows of the local bucket server's index, without content: a reuse check asks for none. The check runs in
a process of its own, the server in this one.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contracts.artifacts import CheckpointManifest, FileEntry
from contracts.stage import find_output_damage
from rehearsal.gcs import BucketServer
from rehearsal.gcs.index import Record

_FOLDER = "gs://shards/line/shard/0123456789abcdef"
_SHARD_BYTES = 128 << 20


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--check", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check is not None:
        print(json.dumps(_check(options.check)))
        return
    for num_shards in options.shards:
        print(json.dumps({"shards": num_shards, **measure_reuse(num_shards)}), flush=True)


def measure_reuse(num_shards: int) -> dict[str, float]:
    """Return seconds, requests and peak memory (MB) of one check."""
    with tempfile.TemporaryDirectory() as name, BucketServer(Path(name), is_open=True) as server:
        server.objects.create_bucket("shards", {})
        folder = _FOLDER.removeprefix("gs://shards/")
        index = server.objects._index
        with server.objects.lock:
            for number, entry in enumerate(_entries(num_shards), 1):
                path = f"{folder}/{entry.name}"
                crc32c = base64.b64encode(bytes.fromhex(entry.crc32c)).decode()
                index.put(Record("shards", path, number, 1, number, "none", entry.bytes, crc32c, None))
        done = subprocess.run(
            [sys.executable, __file__, "--check", str(num_shards)],
            stdout=subprocess.PIPE,
            env={**os.environ, **server.environment},
            check=True,
            timeout=600,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return {**found, "requests": len(server.access_log.entries())}


def _entries(num_shards: int) -> list[FileEntry]:
    return [
        FileEntry(name=f"train-{number:05d}-0a1b2c3d.tar", bytes=_SHARD_BYTES, crc32c=f"{number:08x}")
        for number in range(num_shards)
    ]


def _check(num_shards: int) -> dict[str, float]:
    # Of all documents the one with a plain list of files; its other fields are not looked at.
    document = CheckpointManifest.model_construct(files=_entries(num_shards))
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    damage = find_output_damage(_FOLDER, document)
    assert damage is None, damage
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "entries_mb": round(before_mb, 1),
        "peak_mb": round(peak_mb, 1),
    }


if __name__ == "__main__":
    main()
