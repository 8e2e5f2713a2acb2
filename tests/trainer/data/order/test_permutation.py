"""Permutations that hit every place once and look like chance, for any number of samples."""

import math
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.randomness import (
    FEISTEL_ROUNDS,
    SORTED_BELOW,
    Permutations,
    feistel,
    hash_integers,
    permute,
    shuffled,
)

# One chance in 3.5 million for each figure (5 standard deviations): all keys are fixed, so nothing here is flaky.
SIGMAS = 5.0


def limit(degrees: int) -> float:
    """The chi-square that chance exceeds once in 3.5 million times (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + SIGMAS * math.sqrt(part)) ** 3


def chi_square(counts: npt.NDArray[np.int64], expected: float | None = None) -> float:
    mean = counts.sum() / counts.size if expected is None else expected
    return float(((counts - mean) ** 2 / mean).sum())


def network(num: int, key: int, place: int, *, back: bool = False) -> int:
    """The Feistel network in Python's unbounded integers, and its way back."""
    width = math.isqrt(num - 1) + 1
    height = -(-num // width)

    def hashed(value: int, round_key: int) -> int:
        mask = (1 << 64) - 1
        state = (value * 0x9E3779B97F4A7C15 + round_key) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        return state ^ (state >> 31)

    sign, rounds = (-1, reversed(range(FEISTEL_ROUNDS))) if back else (1, range(FEISTEL_ROUNDS))
    numbers = list(rounds)
    while True:
        left, right = divmod(place, width)
        for number in numbers:
            if number % 2:
                right = (right + sign * (hashed(left, hash_integers(key, number)) % width)) % width
            else:
                left = (left + sign * (hashed(right, hash_integers(key, number)) % height)) % height
        place = left * width + right
        if place < num:
            return place


def test_every_small_number_is_permuted() -> None:
    for num in range(1, 2001):
        for found in (
            permute(num, hash_integers(num), np.arange(num)),
            feistel(num, hash_integers(num), np.arange(num)),
        ):
            assert (np.bincount(found, minlength=num) == 1).all(), num


def test_two_hundred_larger_numbers_are_permuted() -> None:
    draw = random.Random(1)
    numbers = [SORTED_BELOW - 1, SORTED_BELOW, SORTED_BELOW + 1, 10**6]
    numbers += [int(math.exp(draw.uniform(math.log(2001), math.log(10**6)))) for _ in range(196)]
    for num in numbers:
        assert (np.bincount(permute(num, hash_integers(num), np.arange(num)), minlength=num) == 1).all(), num


@pytest.mark.parametrize("num", [10**12, 10**12 - 11, 2**40, 2**40 + 1, 999_999 * 1_000_001 + 1, 10**15])
def test_far_places_go_there_and_back(num: int) -> None:
    """A network that can be run backwards is a permutation; the arithmetic in 64 bits is that without bounds."""
    draw = random.Random(num)
    places = [0, 1, num // 2, num - 2, num - 1, *(draw.randrange(num) for _ in range(300))]
    found = permute(num, 5, np.array(places)).tolist()
    assert all(0 <= there < num for there in found)
    assert found == [network(num, 5, place) for place in places]
    assert [network(num, 5, there, back=True) for there in found] == places


@pytest.mark.parametrize("num", [10**12, 10**12 - 11])
def test_windows_of_far_places_hold_no_place_twice(num: int) -> None:
    for start in (0, num // 3, num - 200_000):
        assert len(np.unique(permute(num, 9, np.arange(start, start + 200_000)))) == 200_000


def test_pieces_agree_with_the_whole() -> None:
    for num in (1000, 70_000):
        whole = permute(num, 3, np.arange(num))
        keeper = Permutations()
        for start in range(0, num, 977):
            places = np.arange(start, min(num, start + 977))
            assert (permute(num, 3, places) == whole[places]).all()
            assert (keeper.permute(0, num, 3, places) == whole[places]).all()
        assert (keeper.permute(0, num, 4, np.arange(50)) == permute(num, 4, np.arange(50))).all()
        assert (keeper.permute(0, num, 3, np.arange(50)) == whole[:50]).all()


def test_the_order_of_earlier_versions_is_kept() -> None:
    """Checkpoints without a recorded order go on with it: these are places of the version before."""
    assert shuffled(10, hash_integers(7, 2)).tolist() == [5, 9, 3, 0, 7, 2, 4, 1, 8, 6]


def small_findings(num: int, *, epochs: int = 20_000) -> Iterator[tuple[str, float]]:
    """Chi-square over its limit of many permutations of few places; above 1 is no chance."""
    places = np.arange(num)
    orders = np.stack([shuffled(num, hash_integers(3, epoch)) for epoch in range(epochs)])
    positions = np.stack([np.bincount(orders[:, place], minlength=num) for place in places])
    yield "positions", chi_square(positions) / limit((num - 1) ** 2)
    # No place is its own neighbour. Pairs of one position only, so that they are independent.
    pairs = np.bincount(orders[:, 0] * num + orders[:, 1], minlength=num * num).reshape(num, num)
    yield "neighbours", chi_square(pairs[~np.eye(num, dtype=bool)]) / limit(num * (num - 1) - 1)


def large_findings(num: int, *, rounds: int, count: int = 500_000) -> Iterator[tuple[str, float]]:
    """Chi-square over its limit of one permutation of many places, in 32 x 32 cells.

    Cells are drawn without putting back, which only lowers chi-square. The second distance is that of places with the
    same right half, on which the network acts alike when its rounds are few.
    """
    places = np.arange(count)
    width = math.isqrt(num - 1) + 1
    found = feistel(num, 11, places, rounds=rounds)
    cells = found * 32 // num
    most = limit(1023)
    yield "positions", chi_square(np.bincount(places * 32 // count * 32 + cells, minlength=1024)) / most
    for distance in (1, width):
        other = feistel(num, 11, (places + distance) % num, rounds=rounds)
        yield "neighbours", chi_square(np.bincount(cells * 32 + other * 32 // num, minlength=1024)) / most
        steps = (other - found) % num
        yield "steps", chi_square(np.bincount(steps * 1024 // num, minlength=1024)) / most


def test_small_permutations_look_like_chance() -> None:
    for name, finding in small_findings(10):
        assert finding < 1, name


def test_large_permutations_look_like_chance() -> None:
    for name, finding in large_findings(10**6, rounds=FEISTEL_ROUNDS):
        assert finding < 1, name


def test_two_rounds_are_found_out() -> None:
    """That the test above can fail."""
    assert max(f for _, f in large_findings(10**6, rounds=2)) > 10


def test_the_hash_is_fixed() -> None:
    """A change of this value would reorder every training: it must be wanted."""
    assert hash_integers(1, 2, 3) == 0x48CF5028B6DF10DB
    assert hash_integers(1, 2) != hash_integers(2, 1)
    assert 0 <= hash_integers(-1, 2**70) < 2**64
    assert permute(10**6, 7, np.arange(3)).tolist() == [148906, 359947, 42152]
