"""The listing on its way into the graph: files of packed references below the output, read by the workers.

A graph stays small whatever it works on, and the process that runs it need not hold the listing. References travel as
blobs, all of one file of the listing that go into one shard: Beam's cost is by element, and 10^8 of them would hold
more memory than their content. The blobs are Python's own marshal format (fast, and names are bytes; launcher and
workers run the same Python, as Beam demands anyway), compressed: a runner holds them several times over, and a shuffle
is paid by size.
"""

from __future__ import annotations

import marshal
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

from contracts import storage
from sharding.plan import Plan, place
from sharding.sources import Reference

# References in a file of the listing: about 25 MB, and 60 MB once a worker has unpacked it.
PART_REFERENCES = 1 << 18
# Paths and times have much in common: the fastest level takes most of it out.
_LEVEL = 1


def pack(references: Iterable[Reference]) -> bytes:
    """Return references as one blob."""
    return zlib.compress(marshal.dumps([tuple(reference) for reference in references]), _LEVEL)


def unpack(blob: bytes) -> list[Reference]:
    """Return the references of a blob."""
    return [Reference(*fields) for fields in marshal.loads(zlib.decompress(blob))]


def write_parts(work_uri: str, references: Iterable[Reference], part_references: int = PART_REFERENCES) -> int:
    """Write the listing below `work_uri`; return the number of its files.

    Args:
        work_uri: Folder of this attempt.
        references: The listing; it is read once.
        part_references: References in a file.
    """
    remaining = iter(references)
    number = 0
    while batch := list(islice(remaining, part_references)):
        storage.publish(_part_uri(work_uri, number), pack(batch))
        number += 1
    return number


def place_part(work_uri: str, number: int, plan: Plan) -> Iterator[tuple[int, bytes]]:
    """Yield (shard, blob) for all references in one file of the listing."""
    by_shard: dict[int, list[Reference]] = defaultdict(list)
    for reference in unpack(storage.read_bytes(_part_uri(work_uri, number))):
        by_shard[place(plan, reference.path, reference.split)].append(reference)
    for shard, references in by_shard.items():
        yield shard, pack(references)


def _part_uri(work_uri: str, number: int) -> str:
    return storage.join(work_uri, f"references-{number:05d}")
