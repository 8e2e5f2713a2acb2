"""Which sample goes where: arithmetic on hashes, without I/O.

Output is a pure function of the listing and the seed. The split hangs on the relative path alone, so that a new seed
never moves a test sample into training. Inside a split, samples are ordered by a hash of seed and path and cut into
shards of equal numbers of samples. The cuts are hashes themselves: a worker places a sample knowing only the plan.
Since they are drawn from the samples, no planned shard is empty; and since shards are planned by the sources' bytes,
the format of the shards moves no sample.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from contracts.config import SPLITS, SplitFractions

KEY_BYTES = 16


@dataclass(frozen=True)
class Plan:
    """The shards of all splits. A shard's number counts over the splits, in their order."""

    seed: int
    cuts: tuple[tuple[bytes, ...], ...]
    """For each split, the first place hash of every shard but the first (which takes all that is below)."""
    num_shards: tuple[int, ...]
    """For each split; 0 where it has no sample."""
    generation: int = 0
    """Number of increments before this plan; names of files tell them apart."""

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

    def name_of(self, shard: int) -> str:
        """Return the file name of a shard without its suffix: train-00000, ..."""
        split = self.split_of(shard)
        number = shard - sum(self.num_shards[:split])
        # Caches of other libraries know a shard by its file name alone: no two of a chain may share one.
        generation = f"g{self.generation:03d}-" if self.generation else ""
        return f"{SPLITS[split]}-{generation}{number:05d}"


def make_key(path: bytes) -> bytes:
    """Return the 16 bytes that identify a sample: a hash of its relative path, whatever the seed."""
    return hashlib.blake2b(path, digest_size=KEY_BYTES, person=b"shardline key").digest()


def make_place_hash(seed: int, path: bytes) -> bytes:
    """Return the 16 bytes that a sample is placed and ordered by; they are uniform for each seed."""
    salt = seed.to_bytes(16, "little")
    return hashlib.blake2b(path, digest_size=KEY_BYTES, salt=salt, person=b"shardline place").digest()


def choose_split(path: bytes, fractions: SplitFractions) -> int:
    """Return the split of a sample, a place in SPLITS: where the hash of its path falls in [0, 1)."""
    digest = hashlib.blake2b(path, digest_size=8, person=b"shardline split").digest()
    # 53 bits are exact in a float, and keep it below 1.
    point = (int.from_bytes(digest, "little") >> 11) / 2**53
    shares = [getattr(fractions, name) for name in SPLITS]
    end = 0.0
    last = 0
    for split, share in enumerate(shares):
        if share == 0:
            continue
        end += share
        last = split
        if point < end:
            return split
    # The fractions may sum to a little less than 1.
    return last


def count_shards(num_samples: int, source_bytes: int, *, target_shard_bytes: int, min_shards: int) -> int:
    """Return the number of shards of a split: by bytes, at least `min_shards`, never more than it has samples."""
    by_bytes = -(-source_bytes // target_shard_bytes)
    return min(num_samples, max(min_shards, by_bytes, 1))


def cut_evenly(num_samples: int, num_shards: int) -> list[int]:
    """Return where each shard but the first starts, when samples are cut into shards that differ by at most one."""
    return [shard * num_samples // num_shards for shard in range(1, num_shards)]


def make_plan(
    samples: Iterable[tuple[bytes, int, int]],
    *,
    seed: int,
    target_shard_bytes: int,
    min_shards: int,
    generation: int = 0,
) -> Plan:
    """Plan the shards.

    Args:
        samples: (path, split, bytes) of every file, in any order.
        seed: Decides place and order inside a split.
        target_shard_bytes: Bytes of sources in a shard to aim at.
        min_shards: Least number of shards in a split.
        generation: That of the manifest.
    """
    hashes: list[list[bytes]] = [[] for _ in SPLITS]
    sizes = [0] * len(SPLITS)
    for path, split, size in samples:
        hashes[split].append(make_place_hash(seed, path))
        sizes[split] += size
    cuts = []
    num_shards = []
    for split_hashes, split_bytes in zip(hashes, sizes, strict=True):
        split_hashes.sort()
        assert all(one < other for one, other in pairwise(split_hashes)), "two samples with one hash of 128 bits"
        count = count_shards(
            len(split_hashes), split_bytes, target_shard_bytes=target_shard_bytes, min_shards=min_shards
        )
        num_shards.append(count)
        cuts.append(tuple(split_hashes[start] for start in cut_evenly(len(split_hashes), count)))
    return Plan(seed, tuple(cuts), tuple(num_shards), generation)


def place(plan: Plan, path: bytes, split: int) -> int:
    """Return the number of the shard that a sample goes into."""
    within = bisect_right(plan.cuts[split], make_place_hash(plan.seed, path))
    return sum(plan.num_shards[:split]) + within
