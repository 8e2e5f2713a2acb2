"""What grows with the number of samples and shards, and what must not.

    python benchmarks/scale.py                                        # all parts, about 15 minutes
    python benchmarks/scale.py --only listing --objects 100000
    python benchmarks/scale.py --record benchmarks/results

    listing   listing and planning a bucket that is only listed (scale_listing.py), then leaving the plan and building
              the graph, as a launcher does whose engine is another process: seconds, and the launcher's peak of memory
    commit    merging and committing the records of shards that nobody wrote, in one process (scale_commit.py)
    reuse     the reuse check of a finished output in a bucket (scale_reuse.py)
    manifest  a rank that opens the manifest (scale_manifest.py)

Every case is a process of its own. Ends with 1 when a limit of `LIMITS` is passed. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine

# Of what is printed for the largest case.
LIMITS = {"launcher_mb": 200, "graph_bytes": 10**6, "commit_s": 180, "peak_mb": 1000, "reuse_s": 60, "rank_s": 2}
# A smaller output is compared file by file (contracts/artifacts/document.py).
MOST_IN_MANIFEST = 10_000
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
            "shards": plan.total_shards,
            "bytes_per_object": round(sum(path.stat().st_size for path in listing.parts) / listing.num_files, 1),
            "plan_bytes": len(plan.to_bytes()),
            **_used(),
        }


def launch() -> dict[str, Any]:
    """Do what the stage does until its graph is built, in this process; return the figures."""
    from contracts.stage import run_stage
    from sharding import planning, task

    found: dict[str, Any] = {}
    write = task._write

    def build_only(build: Any, *_: Any, **__: Any) -> str:
        from apache_beam import Pipeline
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        pipeline = Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        build(pipeline)
        found["graph_bytes"] = len(pipeline.to_runner_api().SerializeToString())
        found["until_graph_s"] = round(time.perf_counter() - begin, 2)
        raise SystemExit(0)

    def write_nothing(*arguments: Any) -> None:
        # Not before: it imports Beam, which the stage does when its plan is there.
        from sharding.runners import run

        run.run_graph = build_only
        write(*arguments)

    # The server has names, and no content to look at.
    planning.is_worth_probing = lambda *_, **__: False
    task._write = write_nothing
    begin = time.perf_counter()
    config = json.dumps({"sharding": {"source": "gs://bucket/raw", "verify": "none"}})
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SystemExit):
        run_stage("shard", task.shard, ["--config-json", config, "--root", folder])
    return {**found, **_used()}


def _used() -> dict[str, float]:
    """Return seconds of processor, and the peaks of memory (Linux counts in KiB)."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "launcher_cpu_s": round(own.ru_utime + own.ru_stime, 2),
        "workers_cpu_s": round(children.ru_utime + children.ru_stime, 2),
        "launcher_mb": own.ru_maxrss * 1024 // 10**6,
        "worker_mb": children.ru_maxrss * 1024 // 10**6,
    }


def measure_listing(num_objects: int, processes: int, latency_s: float, *, what: str) -> dict[str, Any]:
    """Return the figures of one number of objects, from a process of its own."""
    command = [sys.executable, str(_SERVER), str(num_objects), str(latency_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": endpoint, "NO_PROXY": "127.0.0.1"}
        return _run([__file__, "--alone", what, "--processes", str(processes)], environment)
    finally:
        server.kill()
        server.communicate()


def _run(arguments: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all parts that are asked for."""
    report: dict[str, Any] = {"about": describe_machine("apache-beam", "google-cloud-storage", "numpy")}
    wanted = [options.only] if options.only else ["listing", "commit", "reuse", "manifest"]
    if "listing" in wanted:
        for what in ("listing", "launcher"):
            report[what] = [
                measure_listing(num, options.processes, options.latency_s, what=what) for num in options.objects
            ]
    if "commit" in wanted:
        script = str(Path(__file__).with_name("scale_commit.py"))
        report["commit"] = [_run([script, str(num)]) for num in options.shards]
    if "reuse" in wanted:
        from benchmarks.scale_reuse import measure_reuse

        report["reuse"] = [{"shards": num, **measure_reuse(num)} for num in options.shards if num >= MOST_IN_MANIFEST]
    if "manifest" in wanted:
        from benchmarks.scale_manifest import measure_manifest

        report["manifest"] = measure_manifest(max(options.shards))
    return report


def passed(report: dict[str, Any]) -> list[str]:
    """Return the limits that are passed, in words."""
    launched = [*report.get("listing", []), *report.get("launcher", [])]
    graphs = [row for row in [*launched, *report.get("commit", [])] if "graph_bytes" in row]
    largest = {
        "launcher_mb": max((row["launcher_mb"] for row in launched), default=0),
        "graph_bytes": max((row["graph_bytes"] for row in graphs), default=0),
        "commit_s": max((row["commit_s"] for row in report.get("commit", [])), default=0),
        "peak_mb": max((row["peak_mb"] for row in report.get("commit", [])), default=0),
        "reuse_s": max((row["seconds"] for row in report.get("reuse", [])), default=0),
        "rank_s": report["manifest"]["table_rank"]["seconds"] if "manifest" in report else 0,
    }
    return [f"{name} {value} > {LIMITS[name]}" for name, value in largest.items() if value > LIMITS[name]]


def main() -> int:
    """Measure, print the figures as JSON, and say which limits are passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("listing", "commit", "reuse", "manifest"))
    parser.add_argument("--objects", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--shards", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--processes", type=int, default=2, help="that list")
    parser.add_argument("--latency-s", type=float, default=0.0, help="of each page of a listing")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--alone", choices=("listing", "launcher"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(list_and_plan(options.processes) if options.alone == "listing" else launch()))
        return 0
    report = measure(options)
    text = json.dumps(report, indent=1)
    print(text)
    if options.record:
        (options.record / f"scale-{datetime.now(UTC):%Y-%m-%d}.json").write_text(text + "\n")
    for line in (wrong := passed(report)):
        print(f"passed: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
