"""The listing on its way into the graph: files of packed references in the work folder, read by the workers.

A graph stays small whatever it works on, and the process that runs it need not hold the listing. References travel as
blobs, all of one file of the listing that go into one shard: Beam's cost is by element, and 10^8 of them would hold
more memory than their content. They are compressed: a runner holds them several times over, and a shuffle is paid by
size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from contracts import storage
from sharding.plan import Plan
from sharding.sources import Listing, Reference
from sharding.sources.parts import PART_REFERENCES, pack, unpack

__all__ = ["PART_REFERENCES", "pack", "place_part", "publish_parts", "read_part", "unpack"]


def publish_parts(listing: Listing, folder_uri: str) -> int:
    """Copy the parts of a listing to a folder; return their number.

    Equal listings have equal parts, so whatever another run of the same work left or leaves there is the same.
    """
    for number, path in enumerate(listing.parts):
        storage.replace(_part_uri(folder_uri, number), path.read_bytes())
    return len(listing.parts)


def read_part(folder_uri: str, number: int) -> list[Reference]:
    """Return the references in one file of the listing."""
    return unpack(storage.read_bytes(_part_uri(folder_uri, number)))


def place_part(folder_uri: str, number: int, plan: Plan) -> Iterator[tuple[int, bytes]]:
    """Yield (shard, blob) for all references in one file of the listing."""
    references = read_part(folder_uri, number)
    shards = plan.place_many([one.path for one in references], [one.split for one in references])
    by_shard: dict[int, list[Reference]] = defaultdict(list)
    for shard, reference in zip(shards.tolist(), references, strict=True):
        by_shard[shard].append(reference)
    for shard, own in by_shard.items():
        yield shard, pack(own)


def _part_uri(folder_uri: str, number: int) -> str:
    return storage.join(folder_uri, f"references-{number:05d}")
