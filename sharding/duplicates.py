"""Samples with the same content: found by a hash of 64 bits, and named in the manifest.

The content of a sample is its first file as it is stored; of a row without files, all its cells but the label. Copies
in several splits leak: what is tested was trained on. An increment looks for copies of what it writes, among all
samples; those among what stays are its parent's.
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
    """A sample by its content."""

    content: int
    """Hash of 64 bits."""
    split: int
    path: str
    """Encoded."""
    label: int
    is_new: bool = True
    """Whether this job writes the sample."""


def list_contents(job: Job, result: ShardResult, references: Iterable[Reference]) -> list[ContentEntry]:
    """Return the samples of a finished shard.

    Args:
        job: The planned job.
        result: Of the shard.
        references: Its samples, in any order.
    """
    by_key = {one.key: one for one in references}
    found = []
    for shard in result.shards:
        rows = read_index(job.output_uri, shard)
        for key, content, label in rows[["key", "content", "label"]].tolist():
            reference = by_key[key]
            found.append(ContentEntry(content, reference.split, encode_path(reference.path), label))
    return found


def list_kept_contents(table: Any) -> Iterator[ContentEntry]:
    """Yield the samples of a part of those that an increment keeps (sharding/increments.py)."""
    for path, split, label, content in zip(
        *(table[name].to_pylist() for name in ("path", "split", "label", "content")), strict=True
    ):
        yield ContentEntry(content, split, encode_path(path), label, is_new=False)


def group_contents(job: Job, entries: Iterable[ContentEntry]) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """Return (bucket, samples): equal contents come into one bucket; samples are plain tuples, which Beam encodes."""
    kept_parts = job.planned.increment.num_kept_parts if job.planned.increment else 0
    buckets = -(-(job.planned.num_files + kept_parts * PART_ROWS) // _BUCKET_SAMPLES) or 1
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for entry in entries:
        found[entry.content % buckets].append(tuple(entry))
    return list(found.items())


def find_copies(groups: Iterable[Iterable[tuple[Any, ...]]]) -> Duplicates:
    """Return the copies among the samples of one bucket."""
    by_content: dict[int, list[ContentEntry]] = defaultdict(list)
    for group in groups:
        for one in group:
            entry = ContentEntry(*one)
            by_content[entry.content].append(entry)
    several = [own for own in by_content.values() if len(own) > 1 and any(one.is_new for one in own)]
    return merge_copies([_describe(own) for own in several])


def merge_copies(several: Iterable[Duplicates]) -> Duplicates:
    """Add up findings; of the groups, those in several splits are listed first."""
    groups = copies = leaking = 0
    listed: list[DuplicateGroup] = []
    for one in several:
        groups += one.groups
        copies += one.copies
        leaking += one.leaking_groups
        listed += one.listed
    listed.sort(key=lambda group: (len({one.split for one in group.copies}) == 1, group.copies[0].path))
    return Duplicates(groups=groups, copies=copies, leaking_groups=leaking, listed=listed[:MAX_GROUPS])


def add_kept_copies(found: Duplicates, kept: Iterable[DuplicateGroup]) -> Duplicates:
    """Add the groups of an increment's parent of which nothing new is a copy."""
    known = {group.content for group in found.listed}
    return merge_copies([found, *(_count(group) for group in kept if group.content not in known)])


def _describe(entries: list[ContentEntry]) -> Duplicates:
    # Samples that stay come first, then those of the test split.
    ordered = sorted(entries, key=lambda one: (one.is_new, -one.split, one.path))
    group = DuplicateGroup(
        content=f"{ordered[0].content:016x}",
        copies=[Copy(path=one.path, split=SPLITS[one.split], label=one.label) for one in ordered[:MAX_COPIES]],
        num_copies=len(ordered) if len(ordered) > MAX_COPIES else None,
    )
    return _count(group)


def _count(group: DuplicateGroup) -> Duplicates:
    leaks = len({one.split for one in group.copies}) > 1
    copies = (group.num_copies or len(group.copies)) - 1
    return Duplicates(groups=1, copies=copies, leaking_groups=int(leaks), listed=[group])


def describe_duplicates(found: Duplicates) -> str:
    """Return one line that says what was found, with three examples."""
    examples = found.listed[:MAX_EXAMPLES]
    shown = "; ".join(map(_name_copies, examples))
    more = f"; and {found.groups - len(examples)} more" if found.groups > len(examples) else ""
    leaking = f"{found.leaking_groups} of {found.groups} samples with copies are in several splits (leakage)"
    return f"{found.copies} samples are copies of others; {leaking}: {shown}{more}"


def _name_copies(group: DuplicateGroup) -> str:
    shown = group.copies[:MAX_EXAMPLES]
    others = (group.num_copies or len(group.copies)) - len(shown)
    names = " = ".join(f"{one.path} ({one.split})" for one in shown)
    return f"{names} and {others} more" if others else names


def check_duplicates(found: Duplicates | None, shown: str) -> None:
    """Raise DataError when there are samples with the same content, ConfigError when nobody looked for them."""
    if found is None:
        raise ConfigError(
            f"{shown}: these shards were made without a search for copies",
            allowed="shards that were made with sharding.duplicates=warn or fail",
            todo="shard again with --fresh, or set sharding.duplicates to off",
        )
    if found.groups:
        raise DataError(
            f"{shown}: {describe_duplicates(found)}",
            allowed="every sample once (sharding.duplicates is fail)",
            todo="remove the copies, or set sharding.duplicates to warn",
        )
