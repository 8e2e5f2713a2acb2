"""Batches of arrays by name, a file each: inputs and outputs of a model.

Here: `write_batches`, `Batches`. A step reads one batch at a time, so its memory does not grow with the samples.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""By name of an input or output; the first dimension of all is the batch."""


@dataclass(frozen=True)
class Batches:
    """Batches in files; sizes and further dimensions (a text's length) may differ from batch to batch."""

    paths: tuple[Path, ...]

    def __iter__(self) -> Iterator[Arrays]:
        """Iterate over the batches, reading one at a time."""
        return map(read_arrays, self.paths)


def read_arrays(path: Path) -> Arrays:
    """Return the arrays of a file."""
    with np.load(path) as arrays:
        return dict(arrays)


def write_batches(folder: Path, batches: Iterable[Mapping[str, Array]]) -> Batches:
    """Write batches into a new folder.

    Raises:
        OSError: The disk or the quota is full.
    """
    folder.mkdir()
    paths = []
    for place, batch in enumerate(batches):
        stream, arrays = io.BytesIO(), dict[str, Any](batch)
        np.savez(stream, **arrays)
        paths.append(folder / f"{place:05d}.npz")
        # np.savez to a path loses the error number of a full disk.
        paths[-1].write_bytes(stream.getbuffer())
    return Batches(tuple(paths))


def fill(batch: Mapping[str, Array], size: int) -> Arrays:
    """Return `size` samples of a batch, repeated from its start if it has fewer."""
    return {name: array[np.arange(size) % len(array)] for name, array in batch.items()}


def join_batches(batches: Iterable[Mapping[str, Array]]) -> Arrays:
    """Concatenate batches of the same shape."""
    listed = list(batches)
    return {name: np.concatenate([batch[name] for batch in listed]) for name in listed[0]}
