"""Which sample goes where: arithmetic on hashes, without I/O.

Output is a pure function of the listing and the seed. The split hangs on the relative path alone, so that a new seed
never moves a test sample into training. Inside a split, samples are ordered by a hash of seed and path and cut into
shards of equal numbers of samples. The cuts are hashes themselves: a worker places a sample knowing only the plan.
Since they are drawn from the samples, no planned shard is empty; and since shards are planned by the sources' bytes,
the format of the shards moves no sample.

Numpy is imported where it is needed: a stage that only finds its result must start quickly.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from contracts.config import SPLITS, SplitFractions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Prefixes = npt.NDArray[np.uint64]

KEY_BYTES = 16
# Of a place hash, its first bytes: what samples are placed by. Two samples of 10^9 have the same with 3 %, and are
# placed in the same shard then.
PREFIX_BYTES = 8
# Samples that are planned exactly: their hashes take 16 MB. More are counted in bins.
EXACT_SAMPLES = 2_000_000
# A cut is less than a bin off its place: 1.6 % of the samples of a shard.
BINS_PER_SHARD = 64
_MAGIC = b"shardline plan 1"


@dataclass(frozen=True, eq=False)
class Plan:
    """The shards of all splits. A shard's number counts over the splits, in their order."""

    seed: int
    cuts: tuple[Prefixes, ...]
    """For each split, ascending: the first prefix of every shard but the first (which takes all that is below)."""
    num_shards: tuple[int, ...]
    """For each split; 0 where it has no sample."""

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
            key: Of the work: a name decides its bytes.
        """
        split = self.split_of(shard)
        number = shard - sum(self.num_shards[:split])
        return f"{SPLITS[split]}-{key}-{number:05d}"

    def place(self, path: bytes, split: int) -> int:
        """Return the number of the shard that a sample goes into."""
        return int(self.place_many([path], [split])[0])

    def place_many(self, paths: Sequence[bytes], splits: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the numbers of the shards that samples go into: [N]."""
        import numpy as np

        prefixes = _to_numbers(b"".join(_make_prefix(self.seed, path) for path in paths))
        own = np.asarray(splits)
        shards = np.empty(len(paths), np.int64)
        first = 0
        for split, (cuts, count) in enumerate(zip(self.cuts, self.num_shards, strict=True)):
            chosen = own == split
            shards[chosen] = first + np.searchsorted(cuts, prefixes[chosen], side="right")
            first += count
        return shards

    def to_bytes(self) -> bytes:
        """Return the plan as a file: equal plans give equal bytes."""
        head = struct.pack("<B", len(SPLITS)) + self.seed.to_bytes(16, "little")
        counts = struct.pack(f"<{len(SPLITS)}Q", *self.num_shards)
        return _MAGIC + head + counts + b"".join(cuts.astype("<u8").tobytes() for cuts in self.cuts)

    @classmethod
    def from_bytes(cls, content: bytes) -> Plan:
        """Return the plan that `to_bytes` has written."""
        import numpy as np

        position = len(_MAGIC) + 1
        assert content[:position] == _MAGIC + struct.pack("<B", len(SPLITS)), "no plan of this version"
        seed = int.from_bytes(content[position : position + 16], "little")
        position += 16
        num_shards = struct.unpack_from(f"<{len(SPLITS)}Q", content, position)
        position += 8 * len(SPLITS)
        cuts = []
        for count in num_shards:
            cuts.append(np.frombuffer(content, "<u8", max(0, count - 1), position).astype(np.uint64))
            position += cuts[-1].nbytes
        return cls(seed, tuple(cuts), num_shards)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash((self.seed, self.num_shards))


def make_key(path: bytes) -> bytes:
    """Return the 16 bytes that identify a sample: a hash of its relative path, whatever the seed."""
    return hashlib.blake2b(path, digest_size=KEY_BYTES, person=b"shardline key").digest()


def make_place_hash(seed: int, path: bytes) -> bytes:
    """Return the 16 bytes that a sample is placed and ordered by; they are uniform for each seed."""
    salt = seed.to_bytes(16, "little")
    return hashlib.blake2b(path, digest_size=KEY_BYTES, salt=salt, person=b"shardline place").digest()


def choose_split(path: bytes, fractions: SplitFractions) -> int:
    """Return the split of a sample, a place in SPLITS: where the hash of its path falls in [0, 1)."""
    return split_at(split_point(path), find_split_ends(fractions))


def split_point(path: bytes) -> float:
    """Return where the hash of a path falls in [0, 1)."""
    digest = hashlib.blake2b(path, digest_size=8, person=b"shardline split").digest()
    # 53 bits are exact in a float, and keep it below 1.
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def find_split_ends(fractions: SplitFractions) -> list[tuple[float, int]]:
    """Return (end, split) of the ranges in [0, 1) that belong to splits; the last one ends above 1."""
    ends = []
    end = 0.0
    for split, name in enumerate(SPLITS):
        if share := getattr(fractions, name):
            end += share
            ends.append((end, split))
    # The fractions may sum to a little less than 1.
    ends[-1] = (max(end, 2.0), ends[-1][1])
    return ends


def split_at(point: float, ends: list[tuple[float, int]]) -> int:
    """Return the split that a point of [0, 1) belongs to."""
    for end, split in ends:
        if point < end:
            return split
    raise AssertionError("the last range ends above 1")


def count_shards(num_samples: int, source_bytes: int, *, target_shard_bytes: int) -> int:
    """Return the number of shards of a split: by bytes, at least one, never more than it has samples."""
    by_bytes = -(-source_bytes // target_shard_bytes)
    return min(num_samples, max(by_bytes, 1))


def cut_evenly(num_samples: int, num_shards: int) -> list[int]:
    """Return where each shard but the first starts, when samples are cut into shards that differ by at most one."""
    return [shard * num_samples // num_shards for shard in range(1, num_shards)]


class HasSamples(Protocol):
    """A listing, or what can be read like one."""

    def samples(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (path, split, bytes) of every file; each call from the start."""


def make_plan(
    source: HasSamples | Callable[[], Iterable[tuple[bytes, int, int]]] | Sequence[tuple[bytes, int, int]],
    *,
    seed: int,
    target_shard_bytes: int,
) -> Plan:
    """Plan the shards.

    Up to `EXACT_SAMPLES` samples, shards of a split differ by at most one sample. Of more, the cuts lie between bins.

    Args:
        source: Gives (path, split, bytes) of every file, in any order; it is read twice where there are many.
        seed: Decides place and order inside a split.
        target_shard_bytes: Bytes of sources in a shard to aim at.
    """
    if isinstance(source, Sequence):
        read: Callable[[], Iterable[tuple[bytes, int, int]]] = lambda: source  # noqa: E731
    else:
        read = source if callable(source) else source.samples
    prefixes, num_samples, sizes = _take_in(read(), seed)
    wanted = [
        count_shards(num, size, target_shard_bytes=target_shard_bytes)
        for num, size in zip(num_samples, sizes, strict=True)
    ]
    if prefixes is not None:
        cuts = [_cut_exactly(_to_numbers(own), count) for own, count in zip(prefixes, wanted, strict=True)]
    else:
        cuts = _cut_by_bins(read(), seed, num_samples, wanted)
    # Fewer than wanted where prefixes are the same, or a bin would have to be cut.
    num_shards = tuple(len(own) + 1 if num else 0 for own, num in zip(cuts, num_samples, strict=True))
    return Plan(seed, tuple(cuts), num_shards)


def _take_in(
    samples: Iterable[tuple[bytes, int, int]], seed: int
) -> tuple[list[array[int]] | None, list[int], list[int]]:
    """Return the prefixes of each split (None where there are too many), number of samples, and bytes."""
    prefixes: list[array[int]] | None = [array("Q") for _ in SPLITS]
    num_samples = [0] * len(SPLITS)
    sizes = [0] * len(SPLITS)
    room = EXACT_SAMPLES
    for path, split, size in samples:
        num_samples[split] += 1
        sizes[split] += size
        if prefixes is not None:
            prefixes[split].append(int.from_bytes(_make_prefix(seed, path)))
            room -= 1
            if room < 0:
                prefixes = None
    return prefixes, num_samples, sizes


def _cut_exactly(prefixes: Prefixes, num_shards: int) -> Prefixes:
    """Return the cuts of a split; `prefixes` are sorted."""
    import numpy as np

    # In place: a copy would be as large as all else that the launcher holds.
    prefixes.sort()
    # Samples with one prefix cannot be told apart: they count as one.
    if (prefixes[1:] == prefixes[:-1]).any():
        prefixes = np.unique(prefixes)
    return prefixes[cut_evenly(len(prefixes), min(num_shards, len(prefixes)))]


def _cut_by_bins(
    samples: Iterable[tuple[bytes, int, int]], seed: int, num_samples: list[int], num_shards: list[int]
) -> list[Prefixes]:
    """Count the samples of each split in bins of equal width, and cut between bins: no shard is empty."""
    import numpy as np

    bits = [max(1, (BINS_PER_SHARD * count - 1).bit_length()) for count in num_shards]
    bins = [np.zeros(1 << own, np.uint32) for own in bits]
    remaining = iter(samples)
    while batch := list(islice(remaining, 1 << 16)):
        prefixes = _to_numbers(b"".join(_make_prefix(seed, path) for path, _, _ in batch))
        splits = np.fromiter((split for _, split, _ in batch), np.uint8, len(batch))
        for split, counts in enumerate(bins):
            places, found = np.unique(prefixes[splits == split] >> np.uint64(64 - bits[split]), return_counts=True)
            counts[places] += found.astype(np.uint32)
    cuts = []
    for split, counts in enumerate(bins):
        below = np.cumsum(counts, dtype=np.int64)
        assert below[-1] == num_samples[split], "the samples changed between two passes"
        # The first bin of a shard is that behind which the samples of the shards before are; one with none is no cut.
        targets = np.array(cut_evenly(num_samples[split], num_shards[split]), np.int64)
        firsts = np.searchsorted(below, targets, side="left") + 1
        firsts = np.unique(firsts[below[firsts - 1] < num_samples[split]])
        cuts.append(firsts.astype(np.uint64) << np.uint64(64 - bits[split]))
    return cuts


def _make_prefix(seed: int, path: bytes) -> bytes:
    return make_place_hash(seed, path)[:PREFIX_BYTES]


def _to_numbers(prefixes: bytes | array[int]) -> Prefixes:
    """Return prefixes as numbers, which compare as the bytes do."""
    import numpy as np

    if isinstance(prefixes, bytes):
        return np.frombuffer(prefixes, ">u8").astype(np.uint64)
    # The memory of the array itself.
    return np.frombuffer(prefixes, np.uint64)
