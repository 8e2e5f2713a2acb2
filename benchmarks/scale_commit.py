"""The commit of many shards, and the graph: `python -m benchmarks.scale_commit SHARDS`, called by benchmarks/scale.py.

Records of shards that nobody wrote lie in a work folder in memory; their groups are merged and the manifest is
committed in this one process, where a runner would spread the groups over workers. The size of the Beam graph is that
of the same job.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import ShardingSection
from records.index_parts import ROW
from records.statistics import ChannelSums, Tally
from sharding.commit.manifest import Commit, commit_shards
from sharding.commit.records import merge_group, save_record
from sharding.graph import build_graph
from sharding.job import CUTS_NAME, REVISION, JobHandle, OpenJob, PlannedJob, ShardRecord, open_job, plan_uri
from sharding.plan import Plan

# Rows of a shard: fewer than real ones have (1,340 of 100 KB), so that 10^5 of them fit into memory.
ROWS = 100
CLASSES = 1000


def main() -> None:
    """Measure one size, and print it as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=int)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measure(storage.normalise(Path(folder) / "0123456789abcdef"), options.shards)))


def measure(output_uri: str, num_shards: int) -> dict[str, float]:
    """Return seconds, bytes and peak memory of committing so many shards."""
    opened, handle = _plan(output_uri, num_shards)
    before = time.perf_counter()
    for shard in range(num_shards):
        save_record(_record(shard, opened), opened)
    written_s = time.perf_counter() - before
    commit = Commit(0.01, "off", has_checksums=True)
    graph_bytes = _graph_bytes(handle, commit, len(opened.groups))
    before, processor = time.perf_counter(), time.process_time()
    for group in range(len(opened.groups)):
        merge_group(group, opened)
    merged_s = time.perf_counter() - before
    commit_shards(opened, commit, None)
    committed_s = time.perf_counter() - before
    manifest = ShardManifest.load(output_uri)
    assert len(manifest.shards) == num_shards
    assert sum(split.samples for split in manifest.splits.values()) == num_shards * ROWS
    return {
        "shards": num_shards,
        "samples": num_shards * ROWS,
        "records_s": round(written_s, 2),
        "merge_s": round(merged_s, 2),
        "commit_s": round(committed_s, 2),
        "processor_s": round(time.process_time() - processor, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "graph_bytes": graph_bytes,
        "manifest_bytes": storage.size(storage.join(output_uri, "manifest.json")),
    }


def _plan(output_uri: str, num_shards: int) -> tuple[OpenJob, JobHandle]:
    counts = (num_shards - 2 * (num_shards // 10), num_shards // 10, num_shards // 10)
    cuts = tuple(np.linspace(0, 2**63, count, dtype=np.uint64)[1:] for count in counts)
    plan = Plan(0, cuts, counts)
    planned = PlannedJob(
        revision=REVISION,
        fingerprint=output_uri.rpartition("/")[2],
        made_from={},
        source_uri="file:///nowhere",
        classes=[f"class-{number:04d}" for number in range(CLASSES)],
        multi_label=False,
        sharding=ShardingSection(source="/nowhere", verify="none"),
        seed=0,
        listing="listing-one",
        num_parts=1,
        num_files=num_shards * ROWS,
        source_bytes=num_shards << 27,
        training_files=counts[0] * ROWS,
        has_checksums=True,
        ignored=[],
        num_ignored=0,
        warnings=[],
    )
    storage.publish(storage.join(planned.listing_uri(output_uri), CUTS_NAME), plan.to_bytes())
    storage.publish(plan_uri(output_uri, planned.fingerprint), planned.model_dump_json().encode())
    handle = JobHandle(output_uri, planned.fingerprint, "listing-one", REVISION, 0.0, 0, beats=False)
    return open_job(handle), handle


def _record(shard: int, opened: OpenJob) -> ShardRecord:
    rows = np.zeros(ROWS, ROW)
    rows["offset"] = np.arange(ROWS) * 100_000
    rows["size"] = 100_000
    rows["crc32c"] = shard
    rows["key"] = np.frombuffer(np.random.default_rng(shard).bytes(16 * ROWS), "V16")
    name = f"{opened.stem_of(shard)}.tar"
    # An empty file would be taken for one that is cut short: its size is compared.
    storage.publish(storage.join(opened.job.output_uri, name), b"x")
    return ShardRecord(
        shard=shard,
        name=name,
        shard_bytes=1,
        crc32c=f"{shard:08x}",
        rows=rows.tobytes(),
        labels=(np.arange(ROWS, dtype="<i4") * 10 + shard % 10).tobytes(),
        sources=np.arange(ROWS, dtype="<u8").tobytes(),
        contents=np.arange(ROWS, dtype="<u8").tobytes(),
        source_bytes=ROWS * 100_000,
        rejected=(),
        channel_sums=ChannelSums(),
        tally=Tally({"jpeg": ROWS}, {}, {}, None, None),
    )


def _graph_bytes(handle: JobHandle, commit: Commit, num_groups: int) -> int:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    build_graph(pipeline, handle, commit, num_parts=num_groups, num_groups=num_groups, num_kept=0)
    return len(pipeline.to_runner_api().SerializeToString())


if __name__ == "__main__":
    main()
