"""The inputs and outputs that the gates look at: of torch, and of every graph, on the same samples.

Here: `write_test_split`, then `write_torch_outputs`, `write_ends` and `write_graph_outputs`, each for a process of its
own; what they find lies in files of the work folder. Samples are prepared once; every graph then runs without torch.
Nothing is timed, nothing is judged (parity.py).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contracts.artifacts.signature import Signature
from trainer.export import parity
from trainer.export.arrays import Array, Arrays, StoredArrays, store_arrays

if TYPE_CHECKING:
    from torch import nn

    from trainer.export.inputs import Inputs
    from trainer.tasks.protocol import Task

# Below it one sample more or less decides; a smaller test split is filled up with noise, for parity alone.
LEAST_INPUTS = 64
# Samples at each end of a dimension: whether the graph takes it is seen by one, and the longest may be large.
END_SAMPLES = 4
# Samples prepared at a time, and run through torch at a time.
_BATCH = 32


Ends = tuple[StoredArrays, StoredArrays]
"""Inputs at the ends of each dimension, and torch's outputs of them."""


@dataclass(frozen=True)
class TestSplit:
    """The test split as the model takes it, on disk."""

    inputs: StoredArrays
    """The split's samples in their order; behind them noise, where they are few."""
    rest: tuple[Path, ...]
    """What else the batches hold, such as labels: a file for each batch."""
    sizes: tuple[int, ...]
    """Samples of each batch."""

    @property
    def samples(self) -> int:
        """Samples of the split, without noise."""
        return sum(self.sizes)


def write_test_split(inputs: Inputs, task: Task, folder: Path) -> TestSplit:
    """Write the test split into files of `folder`; fewer than `LEAST_INPUTS` samples are filled up with noise."""
    import torch

    from trainer.data.evaluation import evaluation_batches
    from trainer.export.bundles import bundle_of
    from trainer.export.tensors import take_inputs
    from trainer.tasks.load import calling

    signature = task.signature
    rest: list[Path] = []
    sizes: list[int] = []

    def prepare() -> Iterator[Arrays]:
        within = partial(calling, inputs.config)
        batches = evaluation_batches(
            inputs.shards_uri, inputs.shards, "test", task, _BATCH, data=inputs.config.data, calling=within
        )
        for batch, samples in batches:
            stream = io.BytesIO()
            torch.save({name: value for name, value in batch.items() if name not in signature.inputs}, stream)
            rest.append(folder / f"test-rest-{len(rest):05d}")
            rest[-1].write_bytes(stream.getvalue())
            sizes.append(samples)
            tensors = take_inputs(batch, signature)
            yield {name: tensor.numpy() for name, tensor in zip(signature.inputs, tensors, strict=True)}
        if missing := max(0, LEAST_INPUTS - sum(sizes)):
            yield bundle_of(inputs.config.task.name).make_noise(task, missing)

    stored = store_arrays(folder / "test-inputs", prepare())
    return TestSplit(stored, tuple(rest), tuple(sizes))


def write_torch_outputs(model: nn.Module, signature: Signature, inputs: StoredArrays, folder: Path) -> StoredArrays:
    """Write the outputs of the torch model, eagerly in fp32."""
    from trainer.export.tensors import run_torch

    return store_arrays(folder, (run_torch(model, signature, batch) for batch in inputs.batches(_BATCH)))


def write_ends(model: nn.Module, signature: Signature, inputs: StoredArrays, folder: Path) -> Ends | None:
    """Write `END_SAMPLES` samples at min and at max of each dimension that varies, and torch's outputs of them.

    Samples are cut, or repeated from their start.

    Args:
        model: In evaluation mode.
        signature: Of the model.
        inputs: The test split.
        folder: For two new folders.
    """
    import torch

    from trainer.export.tensors import run_torch
    from trainer.model.sizes import resize_inputs

    if not signature.dimensions:
        return None
    usual = {name: dimension.opt for name, dimension in signature.dimensions.items()}
    samples = inputs.fill(END_SAMPLES)
    tensors = tuple(torch.from_numpy(samples[name]) for name in signature.inputs)

    def resized() -> Iterator[Arrays]:
        for name, dimension in signature.dimensions.items():
            for size in (dimension.min, dimension.max):
                found = resize_inputs(tensors, signature, {**usual, name: size})
                yield {one: tensor.numpy() for one, tensor in zip(signature.inputs, found, strict=True)}

    stored = store_arrays(folder / "ends-inputs", resized())
    batches = stored.batches(END_SAMPLES)
    return stored, store_arrays(folder / "ends-torch", (run_torch(model, signature, one) for one in batches))


def write_graph_outputs(
    graph: Path, inputs: StoredArrays, folder: Path, *, batch_size: int, threads: int
) -> StoredArrays:
    """Write the outputs of an ONNX file in ONNX Runtime."""
    run = parity.open_graph(graph, threads=threads)
    return store_arrays(folder, (run(batch) for batch in inputs.batches(batch_size)))


def measure_batches(graph: Path, inputs: StoredArrays, sizes: list[int], *, threads: int) -> dict[int, float]:
    """Return by batch size how far the outputs of a batch are from those of its samples one by one.

    The largest difference over the size of an output, of the worst output: over its range, or where that is smaller
    its largest number, of which float32 rounds a part. Batches are filled by repeating samples.
    """
    run = parity.open_graph(graph, threads=threads)
    pool = inputs.fill(min(max(sizes), max(part.samples for part in inputs.parts)))
    number = len(next(iter(pool.values())))
    singles = [run({name: array[place : place + 1] for name, array in pool.items()}) for place in range(number)]
    alone = {name: _as_float(np.concatenate([one[name] for one in singles])) for name in singles[0]}
    found = {}
    for size in sizes:
        places = np.arange(size) % number
        together = run({name: array[places] for name, array in pool.items()})
        errors = [
            float(np.abs(_as_float(together[name]) - array[places]).max())
            / (max(float(np.ptp(array)), float(np.abs(array).max())) or 1.0)
            for name, array in alone.items()
        ]
        # No number in JSON is as large as what is none.
        found[size] = max(error if np.isfinite(error) else sys.float_info.max for error in errors)
    return found


def _as_float(array: Array) -> Array:
    """Return numbers that can be subtracted: truth values cannot, and those without sign wrap around."""
    return array if array.dtype == np.float32 else array.astype(np.float64)
