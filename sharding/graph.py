"""The Beam graph of the stage, whole.

    .work/listing/references-NNNNN ─place─> (shard, references) ─┐
                       │                    (shard, nothing) ────┴─group─> write ─> (group, shard) ─group─> merge ─┐
                                                                 index part, manifest.json <─────────── commit <───┘

Only references (paths, labels, sizes) are shuffled, never content: each shard is written by one worker that reads its
files and streams them out. What is known about a shard afterwards lies in a record beside it; the records of 256 shards
are combined into a part of the index and a summary, by many workers, and the last step reads the summaries. What is
there already is not made again: a shard has its record, a group its summary, the whole its manifest. Any step may run
twice, at the same time, or in another run: names decide bytes (sharding/job.py), and publishing what is there is
success. No state, no tagged outputs, nothing from finish_bundle: the graph means the same on every runner.

What the store answers for a while is raised, and the runner tries the bundle again. The first error that only a user
can mend ends the work as a refusal in the output's folder: no runner would bring its type and exit code back.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import ErrorDocument, TryAgain, UserError
from sharding.commit.duplicates import (
    Findings,
    check_duplicates,
    find_in_shards,
    find_in_source,
    give_sizes,
    join_findings,
)
from sharding.commit.kept import keep_part
from sharding.commit.manifest import Commit, commit_shards
from sharding.commit.records import has_record, merge_group, read_contents, save_record
from sharding.job import REFUSAL_NAME, JobHandle, SourceChanged, open_job
from sharding.limits import space_needed
from sharding.sources.parts import Fields, pack_fields, read_part_fields, unpack
from sharding.write.pool import ShardPool


def build_graph(
    pipeline: beam.Pipeline,
    handle: JobHandle,
    commit: Commit,
    num_parts: int,
    num_groups: int,
    num_kept: int,
    num_compared: int = 0,
) -> None:
    """Add the steps that write all shards, the index and the manifest.

    Args:
        pipeline: An empty pipeline on any runner that keeps to Beam's model (sharding/runners/run.py).
        handle: The planned job.
        commit: What else the manifest says.
        num_parts: Number of files of the listing.
        num_groups: Number of groups of shards.
        num_kept: Number of parts of the index that an increment takes over.
        num_compared: Number of files of references, after those of the listing, that new files may be copies of.
    """
    # Beam puts a shuffle of these few numbers behind them, which spreads the parts over the workers.
    parts = pipeline | "Parts" >> beam.Create(list(range(num_parts)))
    groups = pipeline | "Groups" >> beam.Create(list(range(num_groups)))
    for_shards = [
        parts | "Place" >> beam.FlatMap(_place, handle).with_output_types(tuple[int, bytes]),
        # So that each planned shard is written, also where nothing is left for it.
        groups | "EachShard" >> beam.FlatMap(_each_shard, handle).with_output_types(tuple[int, bytes]),
    ]
    found_before = None
    # Side inputs that shards wait for.
    awaited = []
    if commit.looks_in_source:
        compared = pipeline | "Compared" >> beam.Create(list(range(num_parts, num_parts + num_compared)))
        found_before = (
            (parts, compared)
            | "WithCompared" >> beam.Flatten()
            | "Sizes" >> beam.FlatMap(_give_sizes, handle).with_output_types(tuple[int, bytes])
            | "GroupBySize" >> beam.GroupByKey()
            | "FindCopies" >> beam.Map(_find_in_source, handle)
            | "JoinCopies" >> beam.CombineGlobally(join_findings)
            | "CheckCopies" >> beam.Map(_check_copies, handle, commit)
        )
        if commit.duplicates == "fail":
            # Nothing is written where copies refuse the source.
            awaited.append(beam.pvalue.AsList(found_before))
    written = (
        for_shards
        | beam.Flatten()
        | "GroupByShard" >> beam.GroupByKey()
        | "WriteShard" >> beam.ParDo(_WriteShard(handle), *awaited).with_output_types(tuple[int, int])
        | "GroupByPart" >> beam.GroupByKey()
    )
    merged = written | "Merge" >> beam.FlatMap(_merge, handle)
    if commit.looks_in_shards:
        found = (
            written
            | "Contents" >> beam.FlatMap(_read_contents, handle).with_output_types(tuple[int, bytes])
            | "GroupByContent" >> beam.GroupByKey()
            | "FindEqual" >> beam.Map(_find_in_shards, handle)
            | "JoinEqual" >> beam.CombineGlobally(join_findings)
        )
    elif found_before is not None:
        found = found_before
    else:
        found = pipeline | "NoCopies" >> beam.Create([None])
    # An increment takes over the parts of its parent's index.
    kept = pipeline | "Parent" >> beam.Create(list(range(num_kept))) | "Keep" >> beam.FlatMap(_keep, handle)
    # One element, so that one call sees the end of all groups.
    sides = (beam.pvalue.AsList(merged), beam.pvalue.AsList(kept), beam.pvalue.AsList(found))
    numbers = (num_groups, num_kept)
    pipeline | "Once" >> beam.Create([None]) | "Commit" >> beam.Map(_commit, *sides, handle, commit, numbers)


def _place(number: int, handle: JobHandle) -> Iterator[tuple[int, bytes]]:
    """Yield (shard, blob) for a part of the listing: Beam's cost is by element, so a shard's references are one."""
    with _working(handle):
        opened = open_job(handle)
        # Plain tuples, of path, label, split, ...
        references = read_part_fields(opened.planned.listing_uri(handle.output_uri), number)
        shards = opened.plan.place_many([one[0] for one in references], [one[2] for one in references])
        by_shard: dict[int, list[Fields]] = defaultdict(list)
        for shard, reference in zip(shards.tolist(), references, strict=True):
            by_shard[shard].append(reference)
        for shard, own in by_shard.items():
            yield shard, pack_fields(own)


def _each_shard(group: int, handle: JobHandle) -> Iterator[tuple[int, bytes]]:
    with _working(handle):
        yield from ((shard, b"") for shard in open_job(handle).groups[group])


def _give_sizes(number: int, handle: JobHandle) -> Iterator[tuple[int, bytes]]:
    with _working(handle):
        yield from give_sizes(number, open_job(handle))


def _find_in_source(bucket: tuple[int, Iterable[bytes]], handle: JobHandle) -> Findings:
    with _working(handle):
        return find_in_source(bucket[1], open_job(handle))
    return Findings()


def _check_copies(found: Findings, handle: JobHandle, commit: Commit) -> Findings:
    """End the job before it writes much, where there are copies and none may be."""
    # The commit looks at them again.
    with _working(handle, swallows=True):
        if commit.duplicates == "fail" and found.groups:
            planned = open_job(handle).planned
            shown = f"sharding.source {storage.display(planned.source_uri)}"
            check_duplicates(found.report(), shown, planned.sharding)
    return found


class _WriteShard(beam.DoFn):  # type: ignore[misc]
    """Writes shards, one after another, in a process of its own: an instance works for one thread."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle = handle
        self._pool: ShardPool | None = None

    def process(self, element: tuple[int, Iterable[bytes]], awaited: Any = None) -> Iterator[tuple[int, int]]:
        """Write one shard, unless it is written; yield the number of its group and its own."""
        shard, blobs = element
        with _working(self._handle, swallows=True):
            opened = open_job(self._handle)
            if not has_record(shard, opened):
                if _is_refused(self._handle) or _is_finished(self._handle):
                    return
                # Of those that `_each_shard` has made nothing is packed.
                references = [reference for blob in blobs if blob for reference in unpack(blob)]
                self._pool = self._pool or ShardPool()
                split = opened.plan.split_of(shard)
                save_record(self._pool.write(opened.stem_of(shard), shard, split, references, opened.job), opened)
            yield opened.group_of(shard), shard

    def teardown(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.close()


def _merge(group: tuple[int, Iterable[int]], handle: JobHandle) -> Iterator[int]:
    number, shards = group
    with _working(handle, swallows=True):
        opened = open_job(handle)
        missing = set(opened.groups[number]) - set(shards)
        if missing:
            # Its writer was refused, and the refusal says why; or another run of the same work has finished it.
            if not (_is_refused(handle) or _is_finished(handle)):
                raise TryAgain(f"shards {sorted(missing)[:10]} were refused, and another run has deleted why")
            return
        merge_group(number, opened)
        yield number


def _read_contents(group: tuple[int, Iterable[int]], handle: JobHandle) -> Iterator[tuple[int, bytes]]:
    number, _ = group
    with _working(handle):
        if not _is_refused(handle):
            yield from read_contents(number, open_job(handle))


def _find_in_shards(bucket: tuple[int, Iterable[bytes]], handle: JobHandle) -> Findings:
    with _working(handle):
        return find_in_shards(bucket[1], open_job(handle))
    return Findings()


def _keep(number: int, handle: JobHandle) -> Iterator[int]:
    with _working(handle):
        keep_part(number, open_job(handle))
        yield number


def _commit(
    _: None,
    merged: list[int],
    kept: list[int],
    found: list[Findings | None],
    handle: JobHandle,
    commit: Commit,
    numbers: tuple[int, int],
) -> None:
    with _working(handle, swallows=True):
        # The latter by another run of the same work, which has cleaned up since.
        if _is_refused(handle) or _is_finished(handle):
            return
        assert (len(set(merged)), len(set(kept))) == numbers, "a part of the index is missing"
        commit_shards(open_job(handle), commit, found[0] if found else None)


@contextlib.contextmanager
def _working(handle: JobHandle, *, swallows: bool = False) -> Iterator[None]:
    """Leave a refusal in the output's folder, where only a user can mend what went wrong in the block.

    Args:
        handle: The job.
        swallows: End the block without an error then, as later steps see what is missing. Steps whose output nobody
            counts must fail: a shard would be written without some of its files.
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
        if not swallows:
            raise
    except storage.AlreadyPublished as error:
        raise TryAgain(f"{error} is there with other content: something else writes into the output") from None
    except FileNotFoundError:
        # Another run of the same work has finished it and cleaned up.
        if not _is_finished(handle):
            raise


def _is_finished(handle: JobHandle) -> bool:
    return storage.exists(storage.join(handle.output_uri, MANIFEST_NAME))


def _is_refused(handle: JobHandle) -> bool:
    return storage.exists(storage.join(handle.output_uri, REFUSAL_NAME))
