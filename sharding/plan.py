"""How many shards there are, and which sample goes where: arithmetic on hashes, without I/O.

The output is a pure function of the listing and the seed. Inside a split, samples are ordered by a hash of seed and
path, and a shard takes a range of these hashes; a worker places a sample knowing only the plan. Shards are planned by
the bytes of the sources, so the format of the shards moves no sample. NumPy is imported where it is needed: a stage
that only finds its result must start quickly.
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

# Up to so many samples of a split, its shards differ by one sample at most: the hashes take 16 MB. Of more, shards are
# equal ranges of hashes: those of 1,000 samples differ by about 3 % (standard deviation).
EXACT_SAMPLES = 2_000_000
_PREFIX_BYTES = 8


class Plan(Document):
    """The shards of all splits. A shard's number counts over the splits, in their order."""

    seed: int
    num_shards: list[int]
    """For each split; 0 where it has no sample."""
    cuts: list[list[int]]
    """For each split, ascending: the first hash (its first 64 bits) of every shard but the first."""

    @property
    def total_shards(self) -> int:
        """Number of shards over all splits."""
        return sum(self.num_shards)

    def split_of(self, shard: int) -> int:
        """Return the split that a shard belongs to, a place in SPLITS."""
        for split, count in enumerate(self.num_shards):
            if shard < count:
                return split
            shard -= count
        raise IndexError(shard)

    def name_of(self, shard: int, key: str) -> str:
        """Return the file name of a shard without its suffix: train-KEY-00000, ...

        Args:
            shard: Its number.
            key: Of the job: a name decides its bytes.
        """
        split = self.split_of(shard)
        return f"{SPLITS[split]}-{key}-{shard - sum(self.num_shards[:split]):05d}"

    def place(self, paths: Sequence[bytes], splits: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the numbers of the shards [N] that samples go into."""
        import numpy as np

        hashes = np.array([_prefix(self.seed, path) for path in paths], np.uint64)
        own = np.asarray(splits)
        shards = np.empty(len(paths), np.int64)
        first = 0
        for split, (cuts, count) in enumerate(zip(self.cuts, self.num_shards, strict=True)):
            chosen = own == split
            shards[chosen] = first + np.searchsorted(np.array(cuts, np.uint64), hashes[chosen], side="right")
            first += count
        return shards


def make_place_hash(seed: int, path: bytes) -> bytes:
    """Return the 16 bytes that a sample is placed and ordered by; they are uniform for each seed."""
    salt = seed.to_bytes(16, "little")
    return hashlib.blake2b(path, digest_size=16, salt=salt, person=b"shardline place").digest()


def make_plan(samples: Iterable[tuple[bytes, int, int]], *, seed: int, target_shard_bytes: int) -> Plan:
    """Plan the shards.

    Args:
        samples: (path, split, bytes) of every sample, in any order.
        seed: Decides place and order inside a split.
        target_shard_bytes: Bytes of sources in a shard to aim at.
    """
    hashes: list[array[int]] | None = [array("Q") for _ in SPLITS]
    num_samples = [0] * len(SPLITS)
    sizes = [0] * len(SPLITS)
    for path, split, size in samples:
        num_samples[split] += 1
        sizes[split] += size
        if hashes is not None:
            hashes[split].append(_prefix(seed, path))
            if len(hashes[split]) > EXACT_SAMPLES:
                hashes = None
    wanted = [
        count_shards(count, size, target_shard_bytes=target_shard_bytes)
        for count, size in zip(num_samples, sizes, strict=True)
    ]
    if hashes is None:
        cuts = [[shard * 2**64 // count for shard in range(1, count)] for count in wanted]
    else:
        cuts = [_cut_evenly(own, count) for own, count in zip(hashes, wanted, strict=True)]
    num_shards = [len(own) + 1 if count else 0 for own, count in zip(cuts, num_samples, strict=True)]
    return Plan(seed=seed, num_shards=num_shards, cuts=cuts)


def count_shards(num_samples: int, source_bytes: int, *, target_shard_bytes: int) -> int:
    """Return the number of shards of a split: by bytes, at least one, never more than it has samples."""
    by_bytes = -(-source_bytes // target_shard_bytes)
    return min(num_samples, max(by_bytes, 1))


def _cut_evenly(hashes: array[int], num_shards: int) -> list[int]:
    """Return the cuts that give shards of equal numbers of samples; samples with the same hash stay together."""
    import numpy as np

    ordered = np.frombuffer(hashes, np.uint64)
    # In place: a copy would be as large as all else that the launcher holds.
    ordered.sort()
    if (ordered[1:] == ordered[:-1]).any():
        ordered = np.unique(ordered)
    num_shards = min(num_shards, len(ordered))
    cuts: list[int] = ordered[[shard * len(ordered) // num_shards for shard in range(1, num_shards)]].tolist()
    return cuts


def _prefix(seed: int, path: bytes) -> int:
    return int.from_bytes(make_place_hash(seed, path)[:_PREFIX_BYTES])
