"""Plan of the shards: their number and the shard of each sample, by arithmetic on hashes without I/O.

The plan is a pure function of the listing and the seed. Within a split, samples are ordered by a hash of seed and path,
and a shard is a range of these hashes; a worker needs only the plan to place a sample. The number of shards depends on
source bytes, so the format of the shards moves no sample. Planning takes 8 bytes per sample. NumPy is imported lazily:
a stage that only reuses its result starts quickly.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from contracts.artifacts import Document
from contracts.config import SPLITS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PREFIX_BYTES = 8


class Plan(Document):
    """The shards of all splits, numbered consecutively over the splits."""

    seed: int
    num_shards: list[int]
    """Number of shards of each split; 0 for an empty split."""
    cuts: list[list[int]]
    """For each split, ascending: the first 64 bits of the first hash of every shard except the first."""

    @property
    def total_shards(self) -> int:
        """Number of shards over all splits."""
        return sum(self.num_shards)

    def split_of(self, shard: int) -> int:
        """Return the split of a shard, an index into SPLITS."""
        for split, count in enumerate(self.num_shards):
            if shard < count:
                return split
            shard -= count
        raise IndexError(shard)

    def name_of(self, shard: int, key: str) -> str:
        """Return the file name of a shard without its suffix: train-KEY-00000, ...

        Args:
            shard: Number of the shard.
            key: Key of the job (sharding/job.py).
        """
        split = self.split_of(shard)
        return f"{SPLITS[split]}-{key}-{shard - sum(self.num_shards[:split]):05d}"

    def place(self, paths: Sequence[bytes], splits: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the shard number [N] of each sample."""
        import numpy as np

        hashes = np.array([_prefix(self.seed, path) for path in paths], np.uint64)
        sample_splits = np.asarray(splits)
        shards = np.empty(len(paths), np.int64)
        first = 0
        for split, (cuts, count) in enumerate(zip(self.cuts, self.num_shards, strict=True)):
            chosen = sample_splits == split
            shards[chosen] = first + np.searchsorted(np.array(cuts, np.uint64), hashes[chosen], side="right")
            first += count
        return shards


def make_place_hash(seed: int, path: bytes) -> bytes:
    """Return the 16-byte placement hash of a sample, uniform for each seed."""
    salt = seed.to_bytes(16, "little")
    return hashlib.blake2b(path, digest_size=16, salt=salt, person=b"shardline place").digest()


def make_plan(samples: Iterable[tuple[bytes, int, int]], *, seed: int, target_shard_bytes: int) -> Plan:
    """Plan the shards.

    Args:
        samples: (path, split, bytes) of every sample, in any order.
        seed: Seed of place and order within a split.
        target_shard_bytes: Target for the source bytes per shard.
    """
    hashes: list[array[int]] = [array("Q") for _ in SPLITS]
    sizes = [0] * len(SPLITS)
    for path, split, size in samples:
        sizes[split] += size
        hashes[split].append(_prefix(seed, path))
    # By bytes, and at least one; `_cut_evenly` makes at most one per sample.
    counts = [max(-(-size // target_shard_bytes), 1) for size in sizes]
    cuts = [_cut_evenly(values, count) for values, count in zip(hashes, counts, strict=True)]
    num_shards = [len(ends) + 1 if values else 0 for ends, values in zip(cuts, hashes, strict=True)]
    return Plan(seed=seed, num_shards=num_shards, cuts=cuts)


def _cut_evenly(hashes: array[int], num_shards: int) -> list[int]:
    """Return the cuts for shards of equal numbers of samples; samples with the same hash stay together."""
    import numpy as np

    ordered = np.frombuffer(hashes, np.uint64)
    # In place, since a copy would double the memory.
    ordered.sort()
    if (ordered[1:] == ordered[:-1]).any():
        ordered = np.unique(ordered)
    num_shards = min(num_shards, len(ordered))
    cuts: list[int] = ordered[[shard * len(ordered) // num_shards for shard in range(1, num_shards)]].tolist()
    return cuts


def _prefix(seed: int, path: bytes) -> int:
    return int.from_bytes(make_place_hash(seed, path)[:_PREFIX_BYTES])
