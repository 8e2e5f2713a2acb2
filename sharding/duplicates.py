"""Duplicate samples, found by a 64-bit hash of their content and listed in the manifest.

The content of a sample is its first file as stored; of a row without files, all cells but the label. Duplicates across
splits are a leak from training into the test. An increment compares its new samples with all samples; the duplicates
among unchanged samples are taken from its parent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from contracts.artifacts import Copy, DuplicateGroup, Duplicates
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError
from records.index import read_index
from sharding.job import Job, ShardResult
from sharding.names import MAX_EXAMPLES, encode_path
from sharding.reference import PART_ROWS, Reference

MAX_GROUPS = 1000
MAX_COPIES = 100
# Samples whose contents are compared in one place.
_BUCKET_SAMPLES = 1 << 16


class ContentEntry(NamedTuple):
    """Content hash, split, path and label of a sample."""

    content: int
    """Hash of 64 bits."""
    split: int
    path: str
    """Percent-encoded (`encode_path`)."""
    label: int
    is_new: bool = True
    """Whether this job writes the sample."""


def list_contents(job: Job, result: ShardResult, references: Iterable[Reference]) -> list[ContentEntry]:
    """Return the samples of a finished shard.

    Args:
        job: The planned job.
        result: Result of the shard.
        references: Its samples, in any order.
    """
    references_by_key = {entry.key: entry for entry in references}
    entries = []
    for shard in result.shards:
        rows = read_index(job.output_uri, shard)
        for key, content, label in rows[["key", "content", "label"]].tolist():
            reference = references_by_key[key]
            entries.append(ContentEntry(content, reference.split, encode_path(reference.path), label))
    return entries


def list_parent_contents(table: Any) -> Iterator[ContentEntry]:
    """Yield the samples in a part of the unchanged samples of an increment (sharding/increments.py)."""
    for path, split, label, content in zip(
        *(table[name].to_pylist() for name in ("path", "split", "label", "content")), strict=True
    ):
        yield ContentEntry(content, split, encode_path(path), label, is_new=False)


def group_contents(job: Job, entries: Iterable[ContentEntry]) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """Group samples by buckets of content hashes; samples are plain tuples, which Beam encodes."""
    num_parent_parts = job.planned.increment.num_kept_parts if job.planned.increment else 0
    buckets = -(-(job.planned.num_files + num_parent_parts * PART_ROWS) // _BUCKET_SAMPLES) or 1
    by_bucket: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for entry in entries:
        by_bucket[entry.content % buckets].append(tuple(entry))
    return list(by_bucket.items())


def find_copies(groups: Iterable[Iterable[tuple[Any, ...]]]) -> Duplicates:
    """Return the copies among the samples of one bucket."""
    by_content: dict[int, list[ContentEntry]] = defaultdict(list)
    for group in groups:
        for entry in map(ContentEntry._make, group):
            by_content[entry.content].append(entry)
    duplicated = [copies for copies in by_content.values() if len(copies) > 1 and any(copy.is_new for copy in copies)]
    return merge_copies([_describe(copies) for copies in duplicated])


def merge_copies(parts: Iterable[Duplicates]) -> Duplicates:
    """Merge duplicates; groups that span several splits come first."""
    groups = copies = leaking = 0
    listed: list[DuplicateGroup] = []
    for part in parts:
        groups += part.groups
        copies += part.copies
        leaking += part.leaking_groups
        listed += part.listed
    listed.sort(key=lambda group: (len({copy.split for copy in group.copies}) == 1, group.copies[0].path))
    return Duplicates(groups=groups, copies=copies, leaking_groups=leaking, listed=listed[:MAX_GROUPS])


def add_parent_copies(copies: Duplicates, parent_groups: Iterable[DuplicateGroup]) -> Duplicates:
    """Add the parent's groups that no new sample belongs to."""
    listed = {group.content for group in copies.listed}
    return merge_copies([copies, *(_count(group) for group in parent_groups if group.content not in listed)])


def _describe(entries: list[ContentEntry]) -> Duplicates:
    # Unchanged samples first, then by split from test to training.
    ordered = sorted(entries, key=lambda entry: (entry.is_new, -entry.split, entry.path))
    group = DuplicateGroup(
        content=f"{ordered[0].content:016x}",
        copies=[Copy(path=entry.path, split=SPLITS[entry.split], label=entry.label) for entry in ordered[:MAX_COPIES]],
        num_copies=len(ordered) if len(ordered) > MAX_COPIES else None,
    )
    return _count(group)


def _count(group: DuplicateGroup) -> Duplicates:
    leaks = len({copy.split for copy in group.copies}) > 1
    copies = (group.num_copies or len(group.copies)) - 1
    return Duplicates(groups=1, copies=copies, leaking_groups=int(leaks), listed=[group])


def describe_duplicates(duplicates: Duplicates) -> str:
    """Describe duplicates in one line with up to three examples."""
    examples = duplicates.listed[:MAX_EXAMPLES]
    shown = "; ".join(map(_name_copies, examples))
    more = f"; and {duplicates.groups - len(examples)} more" if duplicates.groups > len(examples) else ""
    leaking = f"{duplicates.leaking_groups} of {duplicates.groups} samples with copies are in several splits (leakage)"
    return f"{duplicates.copies} samples are copies of others; {leaking}: {shown}{more}"


def _name_copies(group: DuplicateGroup) -> str:
    shown = group.copies[:MAX_EXAMPLES]
    num_more = (group.num_copies or len(group.copies)) - len(shown)
    names = " = ".join(f"{copy.path} ({copy.split})" for copy in shown)
    return f"{names} and {num_more} more" if num_more else names


def check_duplicates(duplicates: Duplicates | None, shown: str) -> None:
    """Raise DataError if there are duplicates, ConfigError if the shards were written without the search for them."""
    if duplicates is None:
        raise ConfigError(
            f"{shown}: these shards were made without a search for copies",
            allowed="shards that were made with sharding.duplicates=warn or fail",
            todo="shard again with --fresh, or set sharding.duplicates to off",
        )
    if duplicates.groups:
        raise DataError(
            f"{shown}: {describe_duplicates(duplicates)}",
            allowed="every sample once (sharding.duplicates is fail)",
            todo="remove the copies, or set sharding.duplicates to warn",
        )
