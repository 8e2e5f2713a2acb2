"""The Beam graph of the stage.

    Create(parts) | Reshuffle | place | GroupByKey | WriteShard ─┬─ results ─────────────┬─ commit: manifest.json
                                                                 └─ contents | GroupByKey ┘
    of an increment also: unchanged samples ─ contents

Only references (paths, labels, sizes) are shuffled, never content: one worker per shard reads its files and streams
them out. Finished work is not repeated: a shard has its record, the whole its manifest. Each step is idempotent, also
concurrently and across runs: a file name determines its bytes (sharding/job.py), and publishing equal bytes succeeds.
There is no state, no tagged output and no finish_bundle, so the graph behaves the same on every runner.

Transient errors are raised, and the runner retries the bundle. The first user error is written to the output's folder
as a refusal, since no runner preserves its type and exit code.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Duplicates
from contracts.errors import ErrorDocument, TryAgain, UserError
from sharding.commit import commit_shards
from sharding.duplicates import find_copies, group_contents, list_contents, list_parent_contents, merge_copies
from sharding.job import REFUSAL_NAME, Job, JobHandle, ShardResult, SourceChanged, merge_results, open_job
from sharding.limits import Limits, space_needed
from sharding.reference import Reference, read_part, to_references
from sharding.workers import write_in_process
from sharding.write import shard_name

# (bucket, samples): see sharding.duplicates.group_contents.
Contents = list[tuple[int, list[tuple[Any, ...]]]]


def build_graph(
    pipeline: beam.Pipeline,
    handle: JobHandle,
    limits: Limits,
    num_parts: int,
    num_kept_parts: int = 0,
) -> None:
    """Add the steps that write all shards, their indices and the manifest.

    Args:
        pipeline: An empty pipeline (sharding/runners.py).
        handle: The planned job.
        limits: Limits that the manifest is checked against.
        num_parts: Number of parts of the listing.
        num_kept_parts: Number of parts, after those of the listing, of samples that new ones may duplicate.
    """
    finds_copies = limits.duplicates != "off"
    parts = pipeline | "Parts" >> beam.Create(list(range(num_parts)))
    if num_parts > 1:
        parts = parts | "SpreadParts" >> beam.Reshuffle()
    written = (
        parts
        | "Place" >> beam.FlatMap(_place, handle).with_output_types(tuple[int, Any])
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShard" >> beam.FlatMap(_write_shard, handle, finds_copies=finds_copies)
    )
    contents = written | "Contents" >> beam.FlatMap(_contents_of).with_output_types(tuple[int, Any])
    if num_kept_parts and finds_copies:
        created = pipeline | "KeptParts" >> beam.Create(list(range(num_parts, num_parts + num_kept_parts)))
        unchanged = created | "KeptContents" >> beam.FlatMap(_list_unchanged, handle).with_output_types(tuple[int, Any])
        contents = (contents, unchanged) | "AllContents" >> beam.Flatten()
    copies = contents | "GroupByContent" >> beam.GroupByKey() | "FindCopies" >> beam.MapTuple(_find_copies)
    # One element: one call of the commit, after all steps.
    sides = (beam.pvalue.AsList(written | "Results" >> beam.Keys()), beam.pvalue.AsList(copies))
    pipeline | "Once" >> beam.Create([None]) | "Commit" >> beam.Map(_commit, *sides, handle, limits)


def _place(number: int, handle: JobHandle) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield (shard, references) for a part of the listing: one element per shard, since Beam's cost is per element."""
    with _refusal_published(handle):
        job = open_job(handle)
        references = read_references(job, number)
        shards = job.planned.plan.place([entry.path for entry in references], [entry.split for entry in references])
        by_shard: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for shard, reference in zip(shards.tolist(), references, strict=True):
            # Plain tuples, which Beam's coders know.
            by_shard[shard].append(tuple(reference))
        yield from by_shard.items()


def read_references(job: Job, number: int) -> list[Reference]:
    """Return the references of a part of the listing."""
    return to_references(read_part(storage.read_bytes(job.part_uri(number))))


def _write_shard(
    element: tuple[int, Iterable[list[tuple[Any, ...]]]], handle: JobHandle, *, finds_copies: bool
) -> Iterator[tuple[ShardResult, Contents]]:
    """Write one shard, unless it is written; yield its result and the contents of its samples."""
    shard, groups = element
    with _refusal_published(handle, suppresses=True):
        job = open_job(handle)
        references = [Reference(*values) for group in groups for values in group]
        result = job.read_record(shard)
        if result is None:
            if _is_refused(handle) or _is_finished(handle):
                return
            try:
                result = write_in_process(handle, shard, references)
            except storage.AlreadyPublished:
                # An attempt that rejected other files (a crash, the time limit) ended between its shard and its record.
                if job.read_record(shard) is None:
                    job.discard_shard(shard, shard_name(job, shard))
                raise TryAgain(f"{job.stem_of(shard)} was there with other content: it is written again") from None
            storage.publish(job.record_uri(shard), result.model_dump_json().encode())
        contents = list_contents(job, result, references) if finds_copies else []
        yield result, group_contents(job, contents)


def _list_unchanged(number: int, handle: JobHandle) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    with _refusal_published(handle):
        job = open_job(handle)
        yield from group_contents(job, list_parent_contents(read_part(storage.read_bytes(job.part_uri(number)))))


def _contents_of(element: tuple[ShardResult, Contents]) -> Contents:
    return element[1]


def _find_copies(_: int, groups: Iterable[list[tuple[Any, ...]]]) -> Duplicates:
    return find_copies(groups)


def _commit(_: None, results: list[ShardResult], copies: list[Duplicates], handle: JobHandle, limits: Limits) -> None:
    with _refusal_published(handle, suppresses=True):
        # Finished: by a concurrent run that has removed the work folder.
        if not _is_refused(handle) and not _is_finished(handle):
            commit_shards(open_job(handle), merge_results(results), merge_copies(copies), limits)


@contextlib.contextmanager
def _refusal_published(handle: JobHandle, *, suppresses: bool = False) -> Iterator[None]:
    """Publish a user error of the block as a refusal in the output's folder.

    Args:
        handle: The job.
        suppresses: Suppress the error after that, for steps whose missing output the commit detects. All other steps
            must fail: a shard would be written without some of its files.
    """
    try:
        with space_needed(handle.output_uri):
            yield
    except (UserError, SourceChanged) as error:
        if _is_finished(handle):
            return
        storage.replace(
            storage.join(handle.output_uri, REFUSAL_NAME), ErrorDocument.of(error).model_dump_json().encode()
        )
        if not suppresses:
            raise
    except storage.AlreadyPublished as error:
        raise TryAgain(
            f"{error} is there with other content: something else writes into the output; run again, and if it stays "
            "so, with --fresh"
        ) from None
    except FileNotFoundError:
        # Another run of the same work has finished it and cleaned up.
        if not _is_finished(handle):
            raise


def _is_finished(handle: JobHandle) -> bool:
    return storage.exists(storage.join(handle.output_uri, MANIFEST_NAME))


def _is_refused(handle: JobHandle) -> bool:
    return storage.exists(storage.join(handle.output_uri, REFUSAL_NAME))
