"""The Beam graph of the stage, whole.

    listing ─create─> references ─place─> (shard, reference) ─group─> (shard, [references]) ─write─> records ─┐
                                                          shard files <──────────────────────┘               │
                                                          index.bin, manifest.json <──────────commit─────────┘

Only references (paths, labels, sizes) are shuffled, never content: each shard is written by one worker that reads its
files and streams them out. Records of shards are small. Any step may run twice or be retried: results are functions of
the listing and the seed, and publishing what is already there is success.

The first error that a user or another attempt can mend ends the work as a refusal beside the shards: no runner would
bring its type and exit code back, and none would gain by retrying it. Faults of ours are raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from contracts import storage
from contracts.errors import TryAgain, UserError
from sharding.manifest import REFUSAL_NAME, Commit, commit_shards, refuse
from sharding.plan import Plan, place
from sharding.shard import Job, ShardRecord, write_shard
from sharding.sources import Reference


def build_graph(pipeline: beam.Pipeline, references: Iterable[Reference], commit: Commit) -> None:
    """Add the steps that write all shards, the index and the manifest.

    Args:
        pipeline: An empty pipeline on any runner that keeps to Beam's model (sharding/runners.py).
        references: The listing.
        commit: The job, its plan, and what else the manifest says.
    """
    records = (
        pipeline
        # As plain tuples: Beam has a compact coder for them, a named one would be pickled.
        | "References" >> beam.Create([tuple(reference) for reference in references], reshuffle=False)
        | "Place" >> beam.Map(_place, commit.job.plan)
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShard" >> beam.FlatMap(_write, commit.job)
    )
    # One element, so that one call sees all records.
    pipeline | "Once" >> beam.Create([None]) | "Commit" >> beam.Map(_commit, beam.pvalue.AsList(records), commit)


def _place(fields: tuple[Any, ...], plan: Plan) -> tuple[int, tuple[Any, ...]]:
    reference = Reference(*fields)
    return place(plan, reference.path, reference.split), fields


def _write(group: tuple[int, Iterable[tuple[Any, ...]]], job: Job) -> Iterator[ShardRecord]:
    if _is_refused(job):
        return
    shard, references = group
    try:
        yield write_shard(shard, [Reference(*fields) for fields in references], job)
    except (UserError, TryAgain) as error:
        refuse(job.output_uri, error)


def _commit(_: None, records: list[ShardRecord], commit: Commit) -> None:
    if _is_refused(commit.job):
        return
    try:
        commit_shards(records, commit)
    except UserError as error:
        refuse(commit.job.output_uri, error)


def _is_refused(job: Job) -> bool:
    return storage.exists(storage.join(job.output_uri, REFUSAL_NAME))
