"""Samples to look at: every class once before any comes twice."""

from __future__ import annotations

import numpy as np

from contracts.artifacts import ShardManifest
from records.index import RECORD, Index
from records.samples import open_samples

_PIECE_RECORDS = 1 << 20


def choose(folder_uri: str, manifest: ShardManifest, count: int, *, among: int | None = None) -> Index:
    """Return the records of training images to draw: every class once before any comes twice.

    The index is read in pieces. Choosing again among the best so far and the next piece chooses what choosing among all
    would: what was dropped had enough before it, which only better ones replace.

    Args:
        folder_uri: Folder of the shards.
        manifest: Their manifest.
        count: Records at most.
        among: Only this many records of the index are looked at, the first; None: all.
    """
    samples = open_samples(manifest, folder_uri)
    split = manifest.splits["train"]
    end = split.first + (split.samples if among is None else min(among, split.samples))
    chosen = np.empty(0, RECORD)
    for first in range(split.first, end, _PIECE_RECORDS):
        piece = samples[first : min(first + _PIECE_RECORDS, end)]
        best = np.concatenate([chosen, piece])
        # In the order of the index, which decides among equals.
        chosen = best[sorted(_take_in_turn(best["label"], count))]
    return chosen[_take_in_turn(chosen["label"], count)]


def _take_in_turn(labels: np.ndarray[tuple[int, ...], np.dtype[np.int32]], count: int) -> list[int]:
    """Return places so that every class comes once before any comes twice."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    # Rank within the class: distance from the class's first place.
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return [int(place) for place in order[np.lexsort((ordered, ranks))][:count]]
