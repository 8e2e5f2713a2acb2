"""What an increment writes, and what it leaves where it is: arithmetic on arrays, without I/O.

A source that has grown is compared with the index of an earlier manifest, its parent: a sample is kept when its path is
there and it is made of the same file and labels. All others are fresh, and are planned as a full reshard plans its
samples. Shards of the parent are reused whole, with tombstones for the samples that are gone, unless

    compacted   too large a share of their samples is gone
    merged      the manifest would list more than `MOST_SHARDS` times the shards of a full reshard: small ones first

in which case what is alive in them joins the fresh samples. So every sample of the source is in exactly one shard, and
an ordinary increment writes what is new and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.config import SPLITS
from sharding.plan import count_shards

# Times the shards of a full reshard: above the first, small shards are merged until the second is reached. The room
# between them is what lets most increments go without a merge.
MOST_SHARDS = 1.5
AIMED_SHARDS = 1.25
# Shards of at least this share of the target are merged only where nothing smaller is left: there is little to gain.
SMALL_SHARE = 0.5

Keys = npt.NDArray[np.bytes_]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """The samples of a source: arrays of one length [N]."""

    keys: Keys
    """S16, each once."""
    identities: npt.NDArray[np.uint64]
    """What each is made of (Reference.identity)."""
    splits: npt.NDArray[np.uint8]
    """Places in SPLITS."""
    sizes: Integers
    """Bytes."""


@dataclass(frozen=True)
class Finished:
    """What a finished manifest holds: arrays over its samples [M], and over its shards [S]."""

    keys: Keys
    identities: npt.NDArray[np.uint64]
    shards: Integers
    """[M] number of the shard of each sample."""
    shard_splits: npt.NDArray[np.uint8]
    """[S] places in SPLITS."""
    tombstones: Integers
    """[S] samples in the file that the index has left out already."""


@dataclass(frozen=True)
class Selection:
    """What becomes of every sample."""

    fresh: Bools
    """[N] samples of the source that are written."""
    reused: Integers
    """Numbers of the shards that stay, ascending."""
    tombstones: Integers
    """Places in the finished index of samples in reused shards that are gone or changed, ascending."""
    num_new: int
    num_changed: int
    num_gone: int
    num_compacted: int
    """Shards written again because too many of their samples are gone; those without a live sample are not counted."""
    num_merged: int
    """Shards written again because there were too many small ones."""


@dataclass(frozen=True)
class Match:
    """Where the samples of a source are in a finished manifest."""

    places: Integers
    """[N] place in the finished index; meaningless where `found` is false."""
    found: Bools
    """[N] whether there is a sample of the same path."""
    same: Bools
    """[N] whether it is made of the same file and labels as well."""

    @property
    def num_kept(self) -> int:
        """Number of samples that need not be written for their own sake."""
        return int(self.same.sum())


def match(source: Source, finished: Finished) -> Match:
    """Find the samples of a source in a finished manifest."""
    if not len(finished.keys):
        nothing = np.zeros(len(source.keys), bool)
        return Match(np.zeros(len(source.keys), np.int64), nothing, nothing)
    order = np.argsort(finished.keys, kind="stable")
    at = np.searchsorted(finished.keys, source.keys, sorter=order)
    places = order[np.minimum(at, len(order) - 1)]
    found = finished.keys[places] == source.keys
    return Match(places, found, found & (finished.identities[places] == source.identities))


def find_moved(source: Source, finished: Finished, matched: Match) -> tuple[Integers, npt.NDArray[np.uint8]]:
    """Return the places of samples of the source that were in another split, and which one."""
    places = np.flatnonzero(matched.found)
    before = finished.shard_splits[finished.shards[matched.places[places]]]
    moved = before != source.splits[places]
    return places[moved], before[moved]


def select(
    source: Source,
    finished: Finished,
    matched: Match,
    *,
    compact_share: float,
    target_shard_bytes: int,
    min_shards: int,
) -> Selection:
    """Decide what is written.

    Args:
        source: What is there now. No sample of it may have moved to another split.
        finished: The parent.
        matched: Of the two.
        compact_share: Share of a shard's samples that may be gone.
        target_shard_bytes: Bytes of sources in a shard to aim at.
        min_shards: Least number of shards in a split of a full reshard, which the number of shards is held against.
    """
    num_shards = len(finished.shard_splits)
    kept = np.flatnonzero(matched.same)
    homes = finished.shards[matched.places[kept]]
    live = np.bincount(homes, minlength=num_shards)
    # Sums of integers below 2**53 are exact.
    live_bytes = np.bincount(homes, weights=source.sizes[kept], minlength=num_shards).astype(np.int64)
    written = np.bincount(finished.shards, minlength=num_shards) + finished.tombstones
    is_compacted = (written - live > compact_share * written) & (live > 0)
    is_reused = (live > 0) & ~is_compacted

    shards = _Shards(source, target_shard_bytes, min_shards)
    is_new = ~matched.same
    shards.add_fresh(source.splits[is_new], source.sizes[is_new])
    for shard in np.flatnonzero(is_compacted):
        shards.move(int(finished.shard_splits[shard]), int(live[shard]), int(live_bytes[shard]))
    shards.num_reused = int(is_reused.sum())
    num_merged = 0
    if shards.total > MOST_SHARDS * shards.full:
        reused = np.flatnonzero(is_reused)
        for shard in reused[np.lexsort((reused, live_bytes[reused]))]:
            is_small = live_bytes[shard] < SMALL_SHARE * target_shard_bytes
            if shards.total <= (AIMED_SHARDS if is_small else MOST_SHARDS) * shards.full:
                break
            shards.move(int(finished.shard_splits[shard]), int(live[shard]), int(live_bytes[shard]))
            shards.num_reused -= 1
            is_reused[shard] = False
            num_merged += 1

    fresh = is_new.copy()
    fresh[kept] = ~is_reused[homes]
    dead = is_reused[finished.shards]
    dead[matched.places[kept]] = False
    num_found = int(matched.found.sum())
    return Selection(
        fresh=fresh,
        reused=np.flatnonzero(is_reused),
        tombstones=np.flatnonzero(dead),
        num_new=len(source.keys) - num_found,
        num_changed=num_found - matched.num_kept,
        num_gone=len(finished.keys) - num_found,
        num_compacted=int(is_compacted.sum()),
        num_merged=num_merged,
    )


class _Shards:
    """How many shards a choice leads to."""

    def __init__(self, source: Source, target_shard_bytes: int, min_shards: int) -> None:
        self._target_shard_bytes = target_shard_bytes
        self._samples = [0] * len(SPLITS)
        self._bytes = [0] * len(SPLITS)
        self.num_reused = 0
        self.full = 0
        """Of a full reshard."""
        for split in range(len(SPLITS)):
            sizes = source.sizes[source.splits == split]
            self.full += self._count(len(sizes), int(sizes.sum()), min_shards)

    @property
    def total(self) -> int:
        """Of the manifest: those that are reused and those that are written."""
        planned = (self._count(num, size, 1) for num, size in zip(self._samples, self._bytes, strict=True))
        return self.num_reused + sum(planned)

    def add_fresh(self, splits: npt.NDArray[np.uint8], sizes: Integers) -> None:
        for split in range(len(SPLITS)):
            own = sizes[splits == split]
            self.move(split, len(own), int(own.sum()))

    def move(self, split: int, num_samples: int, source_bytes: int) -> None:
        """Take in samples that are written."""
        self._samples[split] += num_samples
        self._bytes[split] += source_bytes

    def _count(self, num_samples: int, source_bytes: int, min_shards: int) -> int:
        return count_shards(
            num_samples, source_bytes, target_shard_bytes=self._target_shard_bytes, min_shards=min_shards
        )
