"""The samples of the test split that the gates run: at most 512, the same share of each class.

Here: `draw_samples` and `samples_of`. A draw is a function of the labels in the
index, the number and the seed: `shardline verify` draws the same. Nothing here knows a model, and numpy is imported
where it is needed: stages that find their work done read this module too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.artifacts import ExportManifest, ShardManifest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SPLIT = "test"
# Distinguishes this draw from others that use the run's seed.
_DRAW = 0x70726F6F66

Places = Sequence[int] | None
"""Places of samples in the test split, in rising order; None: all of it."""


def draw_samples(shards_uri: str, shards: ShardManifest, *, most: int, seed: int) -> Places:
    """Return at most `most` places of the test split, stratified by class where labels are classes.

    Args:
        shards_uri: Folder of the shards.
        shards: Their manifest.
        most: Most samples.
        seed: The run's.
    """
    from records.index import SampleIndex

    entry = shards.splits[SPLIT]
    if entry.samples <= most:
        return None
    return stratify(SampleIndex(shards, shards_uri).labels(entry.first, entry.samples), most, seed)


def samples_of(document: ExportManifest, shards_uri: str, shards: ShardManifest) -> Places:
    """Return the places that the gates of a finished export ran."""
    if document.proof_samples is None:
        return None
    return draw_samples(shards_uri, shards, most=document.proof_samples, seed=document.proof_seed or 0)


def stratify(labels: npt.NDArray[np.int32], most: int, seed: int) -> list[int]:
    """Return `most` places, rising: of each label its share, to one sample; which ones is drawn by the seed.

    Samples are put in the order of their labels, those of one label in an order drawn by the seed, and taken at equal
    distances ("systematic sampling").

    Args:
        labels: [N] of all samples, more than `most`; where they are no classes, all are equal.
        most: Samples to draw.
        seed: Of the draw.
    """
    import numpy as np

    from trainer.data.randomness import hash_integers, hashes

    count = len(labels)
    drawn = hashes(np.arange(count, dtype=np.uint64), hash_integers(seed, _DRAW))
    by_label = np.lexsort((drawn, labels))
    return sorted(by_label[(np.arange(most) * count + count // 2) // most].tolist())
