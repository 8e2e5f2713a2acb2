"""Images with the same bytes: found, named in the manifest, on request left out.

With named fields, samples whose first file has the same bytes; of rows without files, those that differ in nothing but
their label.

Copies in several splits leak: what is tested was trained on. Where the listing knows a hash of every file, where
copies are to be left out, and in increments they are looked for in the source before anything is written: files of one
size come together, and those whose hash the listing does not know are read. Else they are looked for in the shards:
crc32c and size, which the writers know anyway, name candidates, and a sha256 of their content decides. An increment
names the copies of what it writes, among all there is; what lies in its parent's shards is kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from contracts import storage
from contracts.artifacts import Copy, DuplicateGroup, Duplicates
from contracts.config import SPLITS, ShardingSection
from contracts.errors import DataError, TryAgain
from records.index import NO_LABEL
from records.whole_sample import IMAGE_FEATURE, extract_image, path_in
from sharding.commit.records import CONTENT
from sharding.job import OpenJob
from sharding.limits import encode_path
from sharding.plan import make_key
from sharding.sources import Reference
from sharding.sources.manifests import find_places
from sharding.sources.parts import PLAIN_FIELDS, Fields, pack_fields, read_part_fields, unpack_fields
from sharding.write.reading import read_file
from sharding.write.shard import SUFFIXES

MAX_GROUPS = 1000
MAX_COPIES = 100
_SHOWN_GROUPS = 5
# Files whose sizes are compared in one place: about 60 MB of references.
_BUCKET_FILES = 1 << 16
_THREADS = 16
# Places of size and hash in a reference that is a plain tuple; such a one, and whether it is written.
_SIZE, _HASH = 3, 5
_Found = tuple[Fields, bool]
# The first byte of packed references: of what is written, and of what lies in shards already.
_WRITTEN, _STAYS = b"w", b"s"


class Group(NamedTuple):
    """Images with the same bytes, compared in this order: those that leak come first."""

    leaks_not: bool
    key: bytes
    """Of the first copy, which is the one that is kept."""
    digest: str
    """`sha256:HEX`, or what the listing says."""
    num_copies: int
    copies: tuple[tuple[str, int, int], ...]
    """Path, split and label of at most 100."""


@dataclass(frozen=True)
class Findings:
    """What is known about images with the same bytes."""

    groups: int = 0
    copies: int = 0
    """Images beyond the first of each group."""
    leaking_groups: int = 0
    listed: tuple[Group, ...] = ()
    left_out: dict[int, list[bytes]] = field(default_factory=dict)
    """Keys of the copies beyond the first, by shard; only where they are looked for in the source."""

    def report(self, *, dropped: bool) -> Duplicates:
        """Return what the manifest says of it."""
        return Duplicates(
            dropped=dropped,
            groups=self.groups,
            copies=self.copies,
            leaking_groups=self.leaking_groups,
            listed=[_describe(group) for group in self.listed],
        )


def join_findings(several: Iterable[Findings]) -> Findings:
    """Add up findings; what is left out is not kept: it is used where it is found."""
    groups = copies = leaking = 0
    listed: list[Group] = []
    for one in several:
        groups += one.groups
        copies += one.copies
        leaking += one.leaking_groups
        listed += one.listed
        if len(listed) > 4 * MAX_GROUPS:
            listed = sorted(listed)[:MAX_GROUPS]
    return Findings(groups, copies, leaking, tuple(sorted(listed)[:MAX_GROUPS]))


def give_sizes(part: int, opened: OpenJob) -> Iterator[tuple[int, bytes]]:
    """Yield (bucket, packed references) of a part of the listing: files of one size come into one bucket.

    Args:
        part: Its number; those after the listing's are of samples that stay where they are.
        opened: The job.
    """
    planned = opened.planned
    num_compared = planned.append.num_compared if planned.append is not None else 0
    buckets = -(-(planned.num_files + num_compared) // _BUCKET_FILES)
    mark = _WRITTEN if part < planned.num_parts else _STAYS
    found: dict[int, list[Fields]] = defaultdict(list)
    for reference in read_part_fields(planned.listing_uri(opened.job.output_uri), part):
        # By content where it is known of all: files of one size may be all that there are.
        alike = reference[_HASH] if planned.has_checksums else b"%d" % reference[_SIZE]
        # Cells are compared by their hash, and a file by its own.
        found[zlib.crc32(alike) % buckets].append(reference[:PLAIN_FIELDS])
    for bucket, references in found.items():
        yield bucket, mark + pack_fields(references)


class _Candidate(NamedTuple):
    """A file that may be a copy; compared, the one to keep comes first."""

    is_written: bool
    """What stays where it is comes first."""
    order: int
    """Of copies in several splits the test's stays: it must not depend on what is added to training."""
    key: bytes
    label: int
    path: str
    shard: int


def find_in_source(blobs: Iterable[bytes], opened: OpenJob) -> Findings:
    """Return the copies among the files of one bucket."""
    by_size: dict[int, list[_Found]] = defaultdict(list)
    for blob in blobs:
        is_written = blob.startswith(_WRITTEN)
        for reference in unpack_fields(blob[1:]):
            by_size[reference[_SIZE]].append((reference, is_written))
    by_content: dict[tuple[int, str], list[_Found]] = defaultdict(list)
    unknown: list[_Found] = []
    # Compared in one way: an object that was uploaded in parts has no md5, and its plain copy has.
    knows: set[int] = set()
    for size, several in by_size.items():
        # An empty file is no image.
        if len(several) < 2 or not size:
            continue
        hashes = [reference[_HASH] for reference, _ in several]
        known = [one.startswith(b"md5:") for one in hashes]
        if not all(known):
            unknown += several
            knows |= {size} if any(known) else set()
        elif len({*hashes}) < len(hashes):
            for one, content_hash in zip(several, hashes, strict=True):
                by_content[size, content_hash.decode()].append(one)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="copies") as pool:
        kinds = ("md5" if reference[_SIZE] in knows else "sha256" for reference, _ in unknown)
        digests = pool.map(partial(_digest, opened), (Reference(*fields) for fields, _ in unknown), kinds)
        for one, digest in zip(unknown, digests, strict=True):
            by_content[one[0][_SIZE], digest].append(one)
    equal = [
        (digest, sorted(_candidate(Reference(*fields), is_written, opened) for fields, is_written in several))
        for (_, digest), several in by_content.items()
        if len(several) > 1 and any(is_written for _, is_written in several)
    ]
    left_out: dict[int, list[bytes]] = defaultdict(list)
    for _, candidates in equal:
        for candidate in candidates[1:]:
            if candidate.is_written:
                left_out[candidate.shard].append(candidate.key)
    found = join_findings([_group(digest, candidates) for digest, candidates in equal])
    return Findings(found.groups, found.copies, found.leaking_groups, found.listed, dict(left_out))


def _digest(opened: OpenJob, reference: Reference, kind: str) -> str:
    known = reference.content_hash.decode()
    if known.startswith("md5:"):
        return known
    fields = opened.job.fields
    content = read_file(opened.job.source_uri, reference if fields is None else fields.first_file(reference))
    return f"{kind}:" + hashlib.new(kind, content, usedforsecurity=False).hexdigest()


def _candidate(reference: Reference, is_written: bool, opened: OpenJob) -> _Candidate:
    return _Candidate(
        is_written,
        -reference.split,
        make_key(reference.path),
        reference.label if opened.job.has_labels else NO_LABEL,
        encode_path(reference.path),
        opened.plan.place(reference.path, reference.split) if is_written else -1,
    )


def _group(digest: str, ordered: Sequence[_Candidate]) -> Findings:
    splits = {one.order for one in ordered}
    group = Group(
        len(splits) == 1,
        ordered[0].key,
        digest,
        len(ordered),
        tuple((one.path, -one.order, one.label) for one in ordered[:MAX_COPIES]),
    )
    return Findings(1, len(ordered) - 1, int(len(splits) > 1), (group,))


def find_in_shards(blobs: Iterable[bytes], opened: OpenJob) -> Findings:
    """Return the copies among the samples of one bucket of contents, read again where crc32c and size agree."""
    contents = np.frombuffer(b"".join(blobs), CONTENT)
    order = np.argsort(contents["content"], kind="stable")
    names = contents["content"][order]
    as_before = np.zeros(len(names) + 1, bool)
    as_before[1:-1] = names[1:] == names[:-1]
    starts = np.flatnonzero(as_before[1:] & ~as_before[:-1])
    ends = np.flatnonzero(as_before[:-1] & ~as_before[1:]) + 1
    findings = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="copies") as pool:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            by_content = defaultdict(list)
            rows = [contents[at] for at in order[start:end].tolist()]
            for row, digest in zip(rows, pool.map(partial(_digest_of_sample, opened), rows), strict=True):
                by_content[digest].append(row)
            for digest, several in by_content.items():
                if len(several) > 1:
                    ordered = sorted(_Candidate(*_order(row, opened), -1, "", int(row["shard"])) for row in several)
                    named = {row["key"].tobytes(): row for row in several}
                    findings.append(
                        _group(
                            digest,
                            [
                                one._replace(
                                    label=int(named[one.key]["label"]),
                                    path=_path_of(named[one.key], opened) if place < MAX_COPIES else "",
                                )
                                for place, one in enumerate(ordered)
                            ],
                        )
                    )
    return join_findings(findings)


def _order(row: np.void, opened: OpenJob) -> tuple[bool, int, bytes]:
    return True, -opened.plan.split_of(int(row["shard"])), row["key"].tobytes()


def _read_sample(row: np.void, opened: OpenJob) -> bytes:
    name = opened.stem_of(int(row["shard"])) + SUFFIXES[opened.job.shard_format]
    uri = storage.join(opened.job.output_uri, name)
    try:
        return storage.read_range(uri, int(row["offset"]), int(row["size"]))
    except FileNotFoundError:
        raise TryAgain(f"{storage.display(uri)} was deleted while sharding; the next attempt writes it again") from None


def _digest_of_sample(opened: OpenJob, row: np.void) -> str:
    fields = opened.job.fields
    feature = IMAGE_FEATURE if fields is None else (fields.file or "").encode()
    content = extract_image(_read_sample(row, opened), opened.job.shard_format, feature)
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _path_of(row: np.void, opened: OpenJob) -> str:
    return path_in(_read_sample(row, opened), opened.job.shard_format) or row["key"].tobytes().hex()


def describe_duplicates(found: Duplicates, section: ShardingSection) -> str:
    """Return one line that says what was found, with the first groups; rows without files are named by their lines."""
    groups = [group.copies[:_SHOWN_GROUPS] for group in found.listed[:_SHOWN_GROUPS]]
    places = find_places(section, [one.path for copies in groups for one in copies])
    shown = "; ".join(
        " = ".join(f"{places.get(one.path, one.path)} ({one.split})" for one in copies) for copies in groups
    )
    more = f"; and {found.groups - _SHOWN_GROUPS} more" if found.groups > _SHOWN_GROUPS else ""
    straddle = "straddled splits" if found.dropped else "straddle splits (leakage)"
    left_out = "samples are copies of others, and were left out" if found.dropped else "samples are copies of others"
    leaking = f"{found.leaking_groups} of {found.groups} groups {straddle}"
    return f"{found.copies} {left_out}; {leaking}: {shown}{more}"


def check_duplicates(found: Duplicates | None, shown: str, section: ShardingSection) -> None:
    """Raise DataError when there are samples with the same bytes."""
    if found is not None and not found.dropped:
        raise DataError(
            f"{shown}: {describe_duplicates(found, section)}",
            allowed="every sample once (sharding.duplicates is fail)",
            todo="remove the copies, or set sharding.duplicates to drop or warn",
        )


def _describe(group: Group) -> DuplicateGroup:
    kind, _, digest = group.digest.partition(":")
    return DuplicateGroup(
        sha256=digest if kind == "sha256" else "",
        checksum="" if kind == "sha256" else group.digest,
        copies=[Copy(path=path, split=SPLITS[split], label=label) for path, split, label in group.copies],
        num_copies=group.num_copies if group.num_copies > len(group.copies) else None,
    )
