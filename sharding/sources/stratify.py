"""Small classes get a sample in every split (`sharding.stratify`): hashes alone leave a split of a small class empty.

Only classes that lack one are touched: a split that is empty gets the sample that is nearest to its range of hashes,
from a split that keeps another. So it hangs on the paths of the class alone, and all other samples stay where they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sharding.plan import split_point
from sharding.sources.reference import Reference

# Samples of such classes that are looked at, 100 MB: more are of very many small classes, or of a share near nothing.
MAX_SAMPLES = 1 << 19


class Move(NamedTuple):
    """A sample that gets another split."""

    path: bytes
    label: int
    size: int
    old: int
    new: int


def find_lacking(counts: Mapping[tuple[int, int], int], ends: list[tuple[float, int]]) -> set[int]:
    """Return the classes that lack a sample in some split, and have enough samples to fill all.

    Args:
        counts: Number of files by (split, label).
        ends: Of the splits that have a share, as `find_split_ends` returns them.
    """
    totals: Counter[int] = Counter()
    filled: Counter[int] = Counter()
    for (_, label), count in counts.items():
        totals[label] += count
        filled[label] += 1
    return {label for label, total in totals.items() if filled[label] < len(ends) <= total}


def choose_moves(references: Iterable[Reference], lacking: set[int], ends: list[tuple[float, int]]) -> list[Move]:
    """Return the samples that fill the empty splits of some classes.

    Args:
        references: All samples of these classes, and any others.
        lacking: The classes.
        ends: As in `find_lacking`.
    """
    samples: dict[int, list[tuple[float, bytes, int, int]]] = defaultdict(list)
    for reference in references:
        if reference.label in lacking:
            point = split_point(reference.path)
            samples[reference.label].append((point, reference.path, reference.source_bytes, reference.split))
    moves = []
    for label in sorted(samples):
        moves += _fill(label, samples[label], ends)
    return moves


def _fill(label: int, samples: list[tuple[float, bytes, int, int]], ends: list[tuple[float, int]]) -> list[Move]:
    by_split = Counter(split for *_, split in samples)
    moves: list[Move] = []
    moved: set[bytes] = set()
    start = 0.0
    for end, split in ends:
        if not by_split[split]:
            # Of equal distances the path decides.
            _, path, size, old = min(
                (max(start - point, point - end, 0.0), path, size, old)
                for point, path, size, old in samples
                if by_split[old] > 1 and path not in moved
            )
            moves.append(Move(path, label, size, old, split))
            moved.add(path)
            by_split[old] -= 1
            by_split[split] += 1
        start = end
    return moves
