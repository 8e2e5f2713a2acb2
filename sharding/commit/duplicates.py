"""Images with the same bytes: found, and named in the manifest.

With named fields, samples whose first file has the same bytes; of rows without files, those that differ in nothing but
their label.

Copies in several splits leak: what is tested was trained on. They are looked for in the shards: crc32c and size, which
the writers know anyway, name candidates, and a sha256 of their content decides. An increment looks in the source
instead, before anything is written: files of one size come together and are read; it names the copies of what it
writes, among all there is. Rows without files are looked for there too: the listing has a hash of each.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from sharding.limits import MAX_EXAMPLES, encode_path
from sharding.plan import make_key
from sharding.sources import Reference
from sharding.sources.manifests import find_places
from sharding.sources.parts import PLAIN_FIELDS, Fields, pack_fields, read_part_fields, unpack_fields
from sharding.write.reading import read_file
from sharding.write.shard import SUFFIXES

MAX_GROUPS = 1000
MAX_COPIES = 100
# Files whose sizes are compared in one place: about 60 MB of references.
_BUCKET_FILES = 1 << 16
_THREADS = 16
# Place of the size in a reference that is a plain tuple; such a one, and whether it is written.
_SIZE = 3
_Found = tuple[Fields, bool]
# The first byte of packed references: of what is written, and of what lies in shards already.
_WRITTEN, _STAYS = b"w", b"s"


class Group(NamedTuple):
    """Images with the same bytes, compared in this order: those that leak come first."""

    leaks_not: bool
    key: bytes
    """Of the first copy."""
    sha256: str
    """Of their content; empty for rows without files."""
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

    def report(self) -> Duplicates:
        """Return what the manifest says of it."""
        return Duplicates(
            groups=self.groups,
            copies=self.copies,
            leaking_groups=self.leaking_groups,
            listed=[_describe(group) for group in self.listed],
        )


def join_findings(several: Iterable[Findings]) -> Findings:
    """Add up findings."""
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
        # Cells are compared by their hash, and a file by its own.
        found[zlib.crc32(b"%d" % reference[_SIZE]) % buckets].append(reference[:PLAIN_FIELDS])
    for bucket, references in found.items():
        yield bucket, mark + pack_fields(references)


class _Candidate(NamedTuple):
    """A file that may be a copy."""

    is_written: bool
    """What stays where it is comes first."""
    order: int
    """Of copies in several splits the test's comes first."""
    key: bytes
    label: int
    path: str


def find_in_source(blobs: Iterable[bytes], opened: OpenJob) -> Findings:
    """Return the copies among the files of one bucket."""
    by_size: dict[int, list[_Found]] = defaultdict(list)
    for blob in blobs:
        is_written = blob.startswith(_WRITTEN)
        for reference in unpack_fields(blob[1:]):
            by_size[reference[_SIZE]].append((reference, is_written))
    # An empty file is no image.
    several = [one for size, own in by_size.items() if size and len(own) > 1 for one in own]
    by_content: dict[tuple[int, str], list[_Found]] = defaultdict(list)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="copies") as pool:
        digests = pool.map(partial(_digest, opened), (Reference(*fields) for fields, _ in several))
        for one, digest in zip(several, digests, strict=True):
            by_content[one[0][_SIZE], digest].append(one)
    return join_findings(
        _group(digest, sorted(_candidate(Reference(*fields), is_written, opened) for fields, is_written in equal))
        for (_, digest), equal in by_content.items()
        if len(equal) > 1 and any(is_written for _, is_written in equal)
    )


def _digest(opened: OpenJob, reference: Reference) -> str:
    """Return the sha256 of a file's content; of a row without files the hash of its cells."""
    fields = opened.job.fields
    if fields is not None and fields.file is None:
        return reference.content_hash.decode()
    content = read_file(opened.job.source_uri, reference if fields is None else fields.first_file(reference))
    return hashlib.sha256(content).hexdigest()


def _candidate(reference: Reference, is_written: bool, opened: OpenJob) -> _Candidate:
    return _Candidate(
        is_written,
        -reference.split,
        make_key(reference.path),
        reference.label if opened.job.has_labels else NO_LABEL,
        encode_path(reference.path),
    )


def _group(digest: str, ordered: Sequence[_Candidate]) -> Findings:
    splits = {one.order for one in ordered}
    group = Group(
        len(splits) == 1,
        ordered[0].key,
        "" if digest.startswith("md5:") else digest,
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
                    ordered = sorted(_Candidate(*_order(row, opened), -1, "") for row in several)
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
    feature = IMAGE_FEATURE
    if fields is not None:
        assert fields.file is not None, "rows are compared by the listing"
        feature = fields.file.encode()
    content = extract_image(_read_sample(row, opened), opened.job.shard_format, feature)
    return hashlib.sha256(content).hexdigest()


def _path_of(row: np.void, opened: OpenJob) -> str:
    return path_in(_read_sample(row, opened), opened.job.shard_format) or row["key"].tobytes().hex()


def describe_duplicates(found: Duplicates, section: ShardingSection) -> str:
    """Return one line that says what was found, with three examples; rows without files are named by their lines."""
    examples = found.listed[:MAX_EXAMPLES]
    places = find_places(section, [one.path for group in examples for one in group.copies[:MAX_EXAMPLES]])
    shown = "; ".join(_name_copies(group, places) for group in examples)
    more = f"; and {found.groups - len(examples)} more" if found.groups > len(examples) else ""
    leaking = f"{found.leaking_groups} of {found.groups} samples with copies are in several splits (leakage)"
    return f"{found.copies} samples are copies of others; {leaking}: {shown}{more}"


def _name_copies(group: DuplicateGroup, places: dict[str, str]) -> str:
    """Return the first copies in words, and the number of the others."""
    shown = group.copies[:MAX_EXAMPLES]
    others = (group.num_copies or len(group.copies)) - len(shown)
    names = " = ".join(f"{places.get(one.path, one.path)} ({one.split})" for one in shown)
    return f"{names} and {others} more" if others else names


def check_duplicates(found: Duplicates | None, shown: str, section: ShardingSection) -> None:
    """Raise DataError when there are samples with the same bytes."""
    if found is not None:
        raise DataError(
            f"{shown}: {describe_duplicates(found, section)}",
            allowed="every sample once (sharding.duplicates is fail)",
            todo="remove the copies, or set sharding.duplicates to warn",
        )


def _describe(group: Group) -> DuplicateGroup:
    return DuplicateGroup(
        sha256=group.sha256,
        copies=[Copy(path=path, split=SPLITS[split], label=label) for path, split, label in group.copies],
        num_copies=group.num_copies if group.num_copies > len(group.copies) else None,
    )
