"""What grows with the number of samples, and what must not: `python benchmarks/scale.py [--objects 100000 1000000]`.

The listing and the plan, in a process as the stage's launcher is, of a bucket that is only listed (scale_listing.py):
its time, its peak of memory beside that of the processes that it starts, and the bytes that it leaves on disk. Prints a
row for each number of objects, and ends with 1 when the launcher's memory passes the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

LAUNCHER_LIMIT_MB = 200
_SERVER = Path(__file__).with_name("scale_listing.py")


def list_and_plan(processes: int) -> dict[str, Any]:
    """List and plan in this process, which has done nothing else yet; return the figures."""
    from contracts.config import ShardingSection
    from sharding.plan import make_plan
    from sharding.sources import list_source

    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        listing = list_source(ShardingSection(source="gs://bucket/raw"), Path(folder), processes=processes)
        listed = time.perf_counter()
        plan = make_plan(listing, seed=0, target_shard_bytes=128 << 20, min_shards=1)
        planned = time.perf_counter()
        return {
            "objects": listing.num_files,
            "objects_per_s": round(listing.num_files / (listed - begin)),
            "list_s": round(listed - begin, 2),
            "plan_s": round(planned - listed, 2),
            "launcher_cpu_s": _cpu_s(resource.RUSAGE_SELF),
            "workers_cpu_s": _cpu_s(resource.RUSAGE_CHILDREN),
            "shards": plan.total_shards,
            "bytes_per_object": round(sum(path.stat().st_size for path in listing.parts) / listing.num_files, 1),
            "plan_bytes": len(plan.to_bytes()),
            # Linux counts in KiB.
            "launcher_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 10**6,
            "worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 // 10**6,
            "sha256": listing.sha256[:16],
        }


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return round(used.ru_utime + used.ru_stime, 2)


def measure(num_objects: int, processes: int, latency_s: float) -> dict[str, Any]:
    """Return the figures of one number of objects, from a process of its own."""
    command = [sys.executable, str(_SERVER), str(num_objects), str(latency_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": endpoint, "NO_PROXY": "127.0.0.1"}
        command = [sys.executable, __file__, "--alone", str(processes)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures
    finally:
        server.kill()
        server.communicate()


def main() -> int:
    """Measure, and print a row of JSON for each number of objects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--processes", type=int, default=2, help="that list")
    parser.add_argument("--latency-s", type=float, default=0.0, help="of each page")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(list_and_plan(options.alone)))
        return 0
    rows = [measure(num, options.processes, options.latency_s) for num in options.objects]
    for row in rows:
        print(json.dumps(row))
    return int(any(row["launcher_mb"] > LAUNCHER_LIMIT_MB for row in rows))


if __name__ == "__main__":
    sys.exit(main())
