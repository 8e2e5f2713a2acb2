"""Images with the same bytes: found in the finished shards, named in the manifest, on request left out.

crc32c and size, which the index holds, name candidates without reading anything; a sha256 of their content decides.
Copies in several splits leak: what is tested was trained on. Dropping takes a second pass over the source, as a shard
that was written is never changed: the first pass leaves the list below, and the second one leaves those images out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.artifacts import Copy, DuplicateGroup, Duplicates, ShardEntry
from contracts.config import SPLITS
from contracts.errors import DataError
from records.description import read_path
from records.index import Index, key_of, read_payload

DUPLICATES_NAME = "duplicates.json"
MAX_LISTED = 1000
_SHOWN_GROUPS = 5


class Findings(BaseModel):
    """What the first pass leaves for the second."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: Duplicates
    drop: list[str]
    """Keys of the images to leave out, as hex digits."""


def find_duplicates(folder: str, shards: Sequence[ShardEntry], index: Index) -> Findings | None:
    """Return the images with the same bytes, None when there are none.

    Args:
        folder: URI of the folder of the shards.
        shards: In the order that the index counts them.
        index: Of all samples.
    """
    groups = []
    drop = []
    for places in _confirm(folder, shards, index):
        # Of copies in several splits the test's stays: it must not depend on what is added to training.
        ordered = sorted(
            places,
            key=lambda at: (-SPLITS.index(shards[int(index[at]["shard"])].split), index[at]["key"].tobytes()),
        )
        groups.append([index[at] for at in ordered])
        drop += [key_of(index[at]) for at in ordered[1:]]
    if not groups:
        return None

    def splits_of(group: list[np.void]) -> set[str]:
        return {shards[int(record["shard"])].split for record in group}

    groups.sort(key=lambda group: (-len(splits_of(group)), key_of(group[0])))
    report = Duplicates(
        dropped=False,
        groups=len(groups),
        copies=len(drop),
        leaking_groups=sum(len(splits_of(group)) > 1 for group in groups),
        listed=[_describe(folder, shards, group) for group in groups[:MAX_LISTED]],
    )
    return Findings(report=report, drop=sorted(drop))


def describe_duplicates(found: Duplicates, *, left_out: bool = False) -> str:
    """Return one line that says what was found, with the first groups.

    Args:
        found: What was found.
        left_out: Whether the copies are about to be left out: then nothing leaks.
    """
    shown = "; ".join(
        " = ".join(f"{one.path} ({one.split})" for one in group.copies) for group in found.listed[:_SHOWN_GROUPS]
    )
    more = f"; and {found.groups - _SHOWN_GROUPS} more" if found.groups > _SHOWN_GROUPS else ""
    straddle = "would straddle splits" if left_out else "straddle splits (leakage)"
    leaking = f"{found.leaking_groups} of {found.groups} groups {straddle}"
    return f"{found.copies} images are copies of others; {leaking}: {shown}{more}"


def check_duplicates(found: Duplicates | None, shown: str) -> None:
    """Raise DataError when there are images with the same bytes."""
    if found is not None and not found.dropped:
        raise DataError(
            f"{shown}: {describe_duplicates(found)}",
            allowed="every image once (sharding.duplicates is fail)",
            todo="remove the copies, or set sharding.duplicates to drop or warn",
        )


def leave_findings(output_uri: str, found: Findings) -> None:
    """Leave what the first pass found for the second."""
    storage.replace(storage.join(output_uri, DUPLICATES_NAME), found.model_dump_json().encode())


def take_findings(output_uri: str) -> Findings | None:
    """Return what the first pass left, None when it had nothing to drop."""
    uri = storage.join(output_uri, DUPLICATES_NAME)
    return Findings.model_validate_json(storage.read_bytes(uri)) if storage.exists(uri) else None


def _confirm(folder: str, shards: Sequence[ShardEntry], index: Index) -> Iterator[list[int]]:
    """Yield the places in the index of each group of equal images."""
    for places in _find_candidates(index):
        by_hash = defaultdict(list)
        for at in places:
            content = read_payload(shards[index[at]["shard"]].uri(folder), index[at])
            by_hash[hashlib.sha256(content).digest()].append(at)
        yield from (group for group in by_hash.values() if len(group) > 1)


def _find_candidates(index: Index) -> Iterator[list[int]]:
    """Yield the places of samples that agree in crc32c and size."""
    names = index["crc32c"].astype(np.uint64) << np.uint64(32) | index["size"]
    order = np.argsort(names, kind="stable")
    names = names[order]
    as_before = np.zeros(len(names) + 1, bool)
    as_before[1:-1] = names[1:] == names[:-1]
    # Runs only: a Python object for each of 10^8 samples would not fit.
    starts = np.flatnonzero(as_before[1:] & ~as_before[:-1])
    ends = np.flatnonzero(as_before[:-1] & ~as_before[1:]) + 1
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield order[start:end].tolist()


def _describe(folder: str, shards: Sequence[ShardEntry], group: list[np.void]) -> DuplicateGroup:
    copies = []
    for record in group:
        entry = shards[record["shard"]]
        path = read_path(entry.uri(folder), record) or key_of(record)
        copies.append(Copy(path=path, split=entry.split, label=int(record["label"])))
    content = read_payload(shards[group[0]["shard"]].uri(folder), group[0])
    return DuplicateGroup(sha256=hashlib.sha256(content).hexdigest(), copies=copies)
