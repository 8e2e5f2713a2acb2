"""The Beam graph of the stage, whole.

    listing ─> .work/ATTEMPT/references-NNNNN
                      │
    part numbers ─place─> (shard, references) ─group─> (shard, [references]) ─write─> (shard, samples) ─┐
                                                            │                                           │
                                              shard files, .work/ATTEMPT/record-NNNNN ──────────> commit
                                                                             index.bin, manifest.json <─┘

Only references (paths, labels, sizes) are shuffled, never content: each shard is written by one worker that reads its
files and streams them out. What is known about a shard afterwards, its part of the index above all, lies in a small
file beside the shards, so that the one sink reads 40 bytes a sample from there and not through the runner. Any step may
run twice or be retried: results are functions of the listing and the seed, and publishing what is already there is
success. No state, no tagged outputs, nothing from finish_bundle: the graph means the same on every runner.

The first error that a user or another attempt can mend ends the work as a refusal beside the shards: no runner would
bring its type and exit code back, and none would gain by retrying it. Faults of ours are raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import apache_beam as beam

from contracts import storage
from contracts.errors import TryAgain, UserError
from contracts.refusal import REFUSAL_NAME, leave_refusal
from sharding.attempt import is_current
from sharding.commit.manifest import Commit, commit_shards
from sharding.references import place_part, unpack
from sharding.runners.heartbeat import beating
from sharding.write.shard import Job, load_record, save_record, write_shard


def build_graph(pipeline: beam.Pipeline, num_parts: int, commit: Commit) -> None:
    """Add the steps that write all shards, the index and the manifest.

    Args:
        pipeline: An empty pipeline on any runner that keeps to Beam's model (sharding/runners/run.py).
        num_parts: Number of files of the listing (sharding/references.py).
        commit: The job, its plan, and what else the manifest says.
    """
    written = (
        pipeline
        # Beam puts a shuffle of these few numbers behind them, which spreads the parts over the workers.
        | "Parts" >> beam.Create(list(range(num_parts)))
        | "Place" >> beam.FlatMap(_place, commit.job).with_output_types(tuple[int, bytes])
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShard" >> beam.FlatMap(_write, commit.job).with_output_types(tuple[int, int])
    )
    # One element, so that one call sees the end of all shards.
    pipeline | "Once" >> beam.Create([None]) | "Commit" >> beam.Map(_commit, beam.pvalue.AsList(written), commit)


def _place(number: int, job: Job) -> Iterator[tuple[int, bytes]]:
    with _working(job):
        if not _is_over(job):
            yield from place_part(job.work_uri, number, job.plan)


def _write(group: tuple[int, Iterable[bytes]], job: Job) -> Iterator[tuple[int, int]]:
    shard, blobs = group
    with _working(job):
        if _is_over(job):
            return
        record = write_shard(shard, [reference for blob in blobs for reference in unpack(blob)], job)
        save_record(record, job)
        yield shard, record.num_samples


def _commit(_: None, written: list[tuple[int, int]], commit: Commit) -> None:
    job = commit.job
    with _working(job):
        if _is_over(job):
            return
        assert sorted({shard for shard, _ in written}) == list(range(job.plan.total_shards)), "a shard is missing"
        commit_shards((load_record(shard, job) for shard in range(job.plan.total_shards)), commit)


@contextlib.contextmanager
def _working(job: Job) -> Iterator[None]:
    """Show signs of life while the block runs; end the block with a refusal, where it is no fault of ours."""
    try:
        with beating(job):
            yield
    except (UserError, TryAgain) as error:
        # What goes wrong in a job that was overtaken is nothing to its successor.
        if is_current(job):
            leave_refusal(job.output_uri, error)
    except storage.AlreadyPublished as error:
        if is_current(job):
            leave_refusal(
                job.output_uri, TryAgain(f"{error} was written otherwise by another job; the next attempt clears it")
            )
    except FileNotFoundError:
        # A successor clears the folder of what it finds there.
        if is_current(job):
            raise


def _is_over(job: Job) -> bool:
    return _is_refused(job) or not is_current(job)


def _is_refused(job: Job) -> bool:
    return storage.exists(storage.join(job.output_uri, REFUSAL_NAME))
