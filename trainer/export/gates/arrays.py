"""Arrays of many samples by name, in files of the work folder: what goes into a model, and what comes out.

Here: `store_arrays`, `StoredArrays`. Files are written, not mapped, so that a full disk is an error with its number:
numpy itself tells a short write without errno, and a file that is mapped before it has its blocks ends the process with
SIGBUS. They are read by mapping: memory is that of a batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from contracts.artifacts.signature import BATCH, Signature

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""By name of an input or output; the first dimension is that of the samples, and the same in all."""


@dataclass(frozen=True)
class _Column:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    """Of a sample."""


@dataclass(frozen=True)
class _Part:
    """Samples of equal shape."""

    samples: int
    columns: dict[str, _Column]

    def open(self) -> Arrays:
        return {
            name: np.memmap(column.path, column.dtype, "r", shape=(self.samples, *column.shape))
            for name, column in self.columns.items()
        }


@dataclass(frozen=True)
class StoredArrays:
    """Arrays on disk. Where shapes differ from batch to batch (text), samples of one shape are a part by themselves."""

    parts: tuple[_Part, ...]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(part.samples for part in self.parts)

    def batches(self, size: int, *, most: int | None = None) -> Iterator[Arrays]:
        """Yield batches of `size` samples, smaller ones at the end of a part.

        Args:
            size: Samples at a time.
            most: Of the first so many samples.
        """
        return self.split(repeat(size), most=most)

    def split(self, sizes: Iterable[int], *, most: int | None = None) -> Iterator[Arrays]:
        """Yield batches of the given sizes, one after the other, until there are no more; a part's end ends a batch."""
        left = self.samples if most is None else most
        wanted = iter(sizes)
        for part in self.parts:
            opened, start = part.open(), 0
            while left and start < part.samples:
                if not (size := next(wanted, 0)):
                    return
                end = min(part.samples, start + min(size, left))
                yield {name: np.array(array[start:end]) for name, array in opened.items()}
                left, start = left - (end - start), end

    def fill(self, size: int) -> Arrays:
        """Return `size` samples of one shape, the most frequent one; where there are fewer, they come again."""
        part = max(self.parts, key=lambda part: part.samples)
        places = np.arange(size) % part.samples
        return {name: np.array(array[places]) for name, array in part.open().items()}

    def read(self) -> Arrays:
        """Return all samples, which must be of one shape."""
        (part,) = self.parts
        return {name: np.array(array) for name, array in part.open().items()}


def store_arrays(folder: Path, batches: Iterable[Mapping[str, Array]]) -> StoredArrays:
    """Write batches one behind the other.

    Args:
        folder: A new folder for the files; after an error it is gone.
        batches: At least one; all have the same names.

    Raises:
        OSError: ENOSPC or its like, when they do not fit.
    """
    folder.mkdir()
    parts: list[_Part] = []
    try:
        with ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for batch in batches:
                arrays = {name: np.ascontiguousarray(array) for name, array in batch.items()}
                number = len(next(iter(arrays.values())))
                kinds = {name: (array.dtype.str, array.shape[1:]) for name, array in arrays.items()}
                last = parts[-1].columns if parts else {}
                if kinds != {name: (column.dtype, column.shape) for name, column in last.items()}:
                    stack.pop_all().close()
                    paths = {name: folder / f"{len(parts):05d}-{place}" for place, name in enumerate(arrays)}
                    # Unbuffered: every write says whether it fitted.
                    files = {name: stack.enter_context(path.open("wb", buffering=0)) for name, path in paths.items()}
                    parts.append(_Part(0, {name: _Column(paths[name], *kinds[name]) for name in arrays}))
                for name, array in arrays.items():
                    _write(files[name], array.reshape(-1).view(np.uint8).data)
                parts[-1] = _Part(parts[-1].samples + number, parts[-1].columns)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return StoredArrays(tuple(parts))


def _write(stream: BinaryIO, content: memoryview) -> None:
    while len(content):
        content = content[stream.write(content) :]


def pad_batch(batch: Mapping[str, Array], size: int) -> Arrays:
    """Return a batch of `size` samples: those that are missing are the first ones again."""
    return {name: array[np.arange(size) % len(array)] if len(array) < size else array for name, array in batch.items()}


def join_batches(batches: Iterable[Mapping[str, Array]]) -> Arrays:
    """Return batches of one shape as one."""
    found = list(batches)
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def random_inputs(signature: Signature, samples: int, *, seed: int = 0) -> Arrays:
    """Return noise of the signature's types; whole numbers are 0 or 1, which every vocabulary has."""
    random = np.random.default_rng(seed)
    sizes = {BATCH: samples, **{name: dimension.opt for name, dimension in signature.dimensions.items()}}
    found: Arrays = {}
    for name, spec in signature.inputs.items():
        shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
        if spec.dtype == "float32":
            found[name] = random.standard_normal(shape, dtype=np.float32)
        else:
            found[name] = random.integers(0, 2, shape).astype(spec.dtype)
    return found
