"""Permutations that are computed place by place, from a key: the arithmetic below trainer/data/order/resolve.py.

Below `SORTED_BELOW` a permutation is made whole, by sorting keyed hashes; from there on it is a Feistel network, which
gives any place alone and needs no memory. Numpy's generators are not used: their streams may change between versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Sorting 65,535 hashes takes some milliseconds, and the result fits in 16 bits a place.
SORTED_BELOW = 1 << 16
# Chi-square finds something in up to 4 rounds from `SORTED_BELOW` on, and in nothing from 5 (docs/reading.md).
FEISTEL_ROUNDS = 8

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def hash_integers(*values: int) -> int:
    """Return a 64-bit hash of integers (splitmix64 over the sequence; Steele, Lea and Flood, OOPSLA 2014)."""
    state = _GOLDEN
    for value in values:
        state = (state ^ (value & _MASK)) & _MASK
        state = (state + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def hash_each(*values: int | Places | Hashes) -> Hashes:
    """Return `hash_integers` for each element of its arguments, which are numbers or arrays of one shape."""
    state = np.asarray(_GOLDEN, dtype=np.uint64)
    for value in values:
        given = np.asarray(value & _MASK if isinstance(value, int) else value).astype(np.uint64)
        state = hashes(np.uint64(1), state ^ given)
    return state


def hashes(values: Hashes | np.uint64, key: int | Hashes) -> Hashes:
    """Return keyed 64-bit hashes: the outputs number `values` of the splitmix64 generator that starts at `key`."""
    with np.errstate(over="ignore"):
        state = values * np.uint64(_GOLDEN) + (np.uint64(key) if isinstance(key, int) else key)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def shuffled(num: int, key: int) -> Places:
    """Return all places of a permutation: [num], by sorting hashes."""
    # No two are equal, so any way of sorting gives the same: splitmix64 takes 64 bits to 64 bits one to one.
    return np.argsort(hashes(np.arange(num, dtype=np.uint64), key)).astype(np.int64)


def shuffled_each(nums: Places, keys: Hashes) -> Places:
    """Return `shuffled` for each pair of a number and a key, end to end: [sum(nums)]."""
    starts = np.cumsum(nums) - nums
    found = np.empty(int(nums.sum()), dtype=np.int64)
    for num in np.unique(nums).tolist():
        rows = np.flatnonzero(nums == num)
        orders = np.argsort(hashes(np.arange(num, dtype=np.uint64), keys[rows, None]), axis=1)
        found[starts[rows, None] + np.arange(num)] = orders
    return found


def feistel(num: int | Places, key: int | Hashes, places: Places, *, rounds: int = FEISTEL_ROUNDS) -> Places:
    """Return where a permutation of [0, num) takes `places`, for num up to 2**62.

    With arrays for `num` and `key`, [len(places)] both, each place has a permutation of its own.

    The network works on pairs (left, right) of a rectangle that is hardly larger than num (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002): alternately, each side is moved by a hash of the other. What falls outside of
    [0, num) goes through again until it is inside (cycle walking); with this rectangle that is about 1 in sqrt(num).
    """
    width = math.isqrt(max(num - 1, 0)) + 1 if isinstance(num, int) else _root(np.maximum(num - 1, 0)) + 1
    height = -(-num // width)
    sides = [np.asarray(value, dtype=np.uint64) for value in (num, width, height)]
    result = places.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        most, across, down = (side[outside] if side.ndim else side for side in sides)
        keys = key if isinstance(key, int) else key[outside]
        result[outside] = _network(result[outside], across, down, keys, rounds)
        outside = outside[result[outside] >= most]
    return result.astype(np.int64)


def _root(values: Places) -> Places:
    """Return the whole square root of values below 2**62."""
    root = np.sqrt(values.astype(np.float64)).astype(np.int64)
    # A float has 53 bits: it may be one off.
    root -= root * root > values
    return root + ((root + 1) * (root + 1) <= values)


def _network(values: Hashes, width: Hashes, height: Hashes, keys: int | Hashes, rounds: int) -> Hashes:
    left, right = np.divmod(values, width)
    for number in range(rounds):
        round_keys = hash_integers(keys, number) if isinstance(keys, int) else hash_each(keys, number)
        # A hash of 64 bits over a side of at most 2**31: the remainder's bias is below 1 in 2**33.
        if number % 2:
            right = (right + hashes(left, round_keys) % width) % width
        else:
            left = (left + hashes(right, round_keys) % height) % height
    return np.asarray(left * width + right)


def permute(num: int, key: int, places: Places) -> Places:
    """Return where the permutation of [0, num) that belongs to `key` takes `places`."""
    return shuffled(num, key)[places] if num < SORTED_BELOW else feistel(num, key, places)


@dataclass
class Permutations:
    """Keeps the sorted permutation last used by each owner (an epoch, a stream): 2 bytes a place."""

    _latest: dict[int, tuple[int, npt.NDArray[np.uint16]]] = field(default_factory=dict)

    def permute(self, owner: int, num: int, key: int, places: Places) -> Places:
        """As `permute`; a new key of the same owner takes the place of its old one."""
        if num >= SORTED_BELOW:
            return feistel(num, key, places)
        latest = self._latest.get(owner)
        if latest is None or latest[0] != key:
            latest = self._latest[owner] = (key, shuffled(num, key).astype(np.uint16))
        return latest[1][places].astype(np.int64)
