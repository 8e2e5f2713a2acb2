"""Keyed randomness: hashes, generators, and permutations.

Below `SORTED_BELOW`, a permutation sorts keyed hashes. Larger ones use a Feistel network, which computes any element
without memory. numpy's permutations are not used: their streams may change between versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Sorting 65,535 hashes takes some milliseconds, and the result fits in 16 bits per place.
SORTED_BELOW = 1 << 16
# Chi-square finds structure in up to 4 rounds from `SORTED_BELOW` on, and none from 5 (docs/reading.md).
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


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator for a sequence of integers; every order and length is a different key."""
    return np.random.Generator(np.random.Philox(key=hash_integers(*key)))


def hashes(values: Hashes, key: int) -> Hashes:
    """Return keyed 64-bit hashes: outputs number `values` of the splitmix64 generator that starts at `key`."""
    with np.errstate(over="ignore"):
        state = values * np.uint64(_GOLDEN) + np.uint64(key)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def shuffled(num: int, key: int) -> Places:
    """Return a whole permutation of [0, num): [num], by sorting hashes."""
    # splitmix64 is bijective: hashes are unique, so every sorting algorithm gives the same result.
    return np.argsort(hashes(np.arange(num, dtype=np.uint64), key)).astype(np.int64)


def feistel(num: int, key: int, places: Places, *, rounds: int = FEISTEL_ROUNDS) -> Places:
    """Return the images of `places` under a permutation of [0, num), for num up to 2**62.

    The network permutes pairs (left, right) of a rectangle slightly larger than num (Black and Rogaway, "Ciphers with
    arbitrary finite domains", 2002): rounds alternately add a hash of one side to the other. Results outside of
    [0, num), about 1 in sqrt(num), are permuted again until they are inside (cycle walking).
    """
    width = math.isqrt(max(num - 1, 0)) + 1
    height = -(-num // width)
    result = places.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        result[outside] = _network(result[outside], np.uint64(width), np.uint64(height), key, rounds)
        outside = outside[result[outside] >= np.uint64(num)]
    return result.astype(np.int64)


def _network(values: Hashes, width: np.uint64, height: np.uint64, key: int, rounds: int) -> Hashes:
    left, right = np.divmod(values, width)
    for number in range(rounds):
        round_key = hash_integers(key, number)
        # A hash of 64 bits over a side of at most 2**31: the remainder's bias is below 1 in 2**33.
        if number % 2:
            right = (right + hashes(left, round_key) % width) % width
        else:
            left = (left + hashes(right, round_key) % height) % height
    return np.asarray(left * width + right)


def permute(num: int, key: int, places: Places) -> Places:
    """Return the images of `places` under the permutation of [0, num) that belongs to `key`."""
    return shuffled(num, key)[places] if num < SORTED_BELOW else feistel(num, key, places)


@dataclass
class Permutations:
    """Cache of the last sorted permutation of each owner: 2 bytes per element."""

    _latest: dict[int, tuple[int, npt.NDArray[np.uint16]]] = field(default_factory=dict)

    def permute(self, owner: int, num: int, key: int, places: Places) -> Places:
        """Like `permute`; a new key of an owner replaces its cached permutation."""
        if num >= SORTED_BELOW:
            return feistel(num, key, places)
        latest = self._latest.get(owner)
        if latest is None or latest[0] != key:
            latest = self._latest[owner] = (key, shuffled(num, key).astype(np.uint16))
        return latest[1][places].astype(np.int64)
