"""The inputs and outputs that the gates look at: of torch, and of every graph, on the same samples.

Here: `write_test_split`, then `write_torch_outputs`, `write_ends` and `write_graph_outputs`, each for a process of its
own; what they find lies in files of the work folder. Samples are prepared once; every graph then runs without torch.
Nothing is timed, nothing is judged (parity.py).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contracts.artifacts.signature import BATCH, Signature
from trainer.export.gates import parity
from trainer.export.gates.arrays import Array, Arrays, StoredArrays, store_arrays
from trainer.export.gates.samples import SPLIT, Places, draw_samples

if TYPE_CHECKING:
    from torch import nn

    from trainer.export.inputs import Inputs
    from trainer.tasks.task import Task

# Below it one sample more or less decides; a smaller test split is filled up with noise, for parity alone.
LEAST_INPUTS = 64
# Samples at each end of a dimension: whether the graph takes it is seen by one, and the longest may be large.
END_SAMPLES = 4
# Samples that run one by one: a batch of any size is filled with them, each at many places.
_ALONE = 8
# Samples prepared at a time, and run through torch on a GPU at a time.
_BATCH = 32
# On a CPU: ResNet-50 on two cores takes 461 images in 15 s by eights, 26 s by sixteens and 32 s by 32s (2026-11-24).
_CPU_BATCH = 8


@dataclass(frozen=True)
class Ends:
    """Some samples at the ends of each dimension that varies."""

    inputs: StoredArrays
    reference: StoredArrays
    """Outputs of these, of torch or of the fp32 graph that agrees with it."""
    beyond: Mapping[str, StoredArrays]
    """One sample with one size more, which an engine refuses, by what is too large."""


@dataclass(frozen=True)
class TestSplit:
    """The test split, or a part of it, as the model takes it, on disk."""

    inputs: StoredArrays
    """The samples in the split's order; behind them noise, where they are few."""
    rest: tuple[Path, ...]
    """What else the batches hold, such as labels: a file for each batch."""
    sizes: tuple[int, ...]
    """Samples of each batch."""
    places: Places = None
    """Which samples of the split these are; None: all."""

    @property
    def samples(self) -> int:
        """Samples, without noise."""
        return sum(self.sizes)


def write_test_split(inputs: Inputs, task: Task, folder: Path, *, most: int, seed: int) -> TestSplit:
    """Write samples of the test split into files of `folder`; fewer than `LEAST_INPUTS` are filled up with noise.

    Args:
        inputs: What is exported, with its shards.
        task: The task.
        folder: Where new files are made.
        most: Most samples (samples.py).
        seed: What they are drawn by.
    """
    import torch

    from trainer.data.cursor import SlotRequest
    from trainer.data.evaluation import checked_batch
    from trainer.data.loader import SlotDataset
    from trainer.data.reader import ShardReader
    from trainer.export.gates.tensors import take_inputs
    from trainer.predict.bundle import make_noise
    from trainer.tasks.loading import calling
    from trainer.tasks.task import Mode

    signature, mode = task.signature, Mode(training=False)
    places = draw_samples(inputs.shards_uri, inputs.shards, most=most, seed=seed)
    fields, data = tuple(task.fields), inputs.config.data
    reader = ShardReader(inputs.shards_uri, inputs.shards, SPLIT, data, fields, scattered=places is not None)
    dataset = SlotDataset(reader, task, seed=None)
    wanted = range(len(reader)) if places is None else places
    rest: list[Path] = []
    sizes: list[int] = []

    def prepare() -> Iterator[Arrays]:
        for start in range(0, len(wanted), _BATCH):
            found = dataset.read(SlotRequest.of(wanted[start : start + _BATCH]))
            with calling(inputs.config, "to_model"):
                made = checked_batch(task.to_model(found.batch, mode))
            stream = io.BytesIO()
            torch.save({name: value for name, value in made.items() if name not in signature.inputs}, stream)
            rest.append(folder / f"test-rest-{len(rest):05d}")
            rest[-1].write_bytes(stream.getvalue())
            sizes.append(len(found.request.samples))
            tensors = take_inputs(made, signature)
            yield {name: tensor.numpy() for name, tensor in zip(signature.inputs, tensors, strict=True)}
        if missing := max(0, LEAST_INPUTS - sum(sizes)):
            yield make_noise(inputs.config.task.name, signature, inputs.shards, missing)

    stored = store_arrays(folder / "test-inputs", prepare())
    return TestSplit(stored, tuple(rest), tuple(sizes), places)


def write_torch_outputs(model: nn.Module, signature: Signature, inputs: StoredArrays, folder: Path) -> StoredArrays:
    """Write the outputs of the torch model, eagerly in fp32, on the device where it is."""
    from trainer.export.gates.tensors import device_of, run_torch

    size = _CPU_BATCH if device_of(model).type == "cpu" else _BATCH
    return store_arrays(folder, (run_torch(model, signature, batch) for batch in inputs.batches(size)))


def write_end_inputs(
    signature: Signature, inputs: StoredArrays, folder: Path
) -> tuple[StoredArrays, dict[str, StoredArrays]]:
    """Write `END_SAMPLES` samples at min and at max of each dimension that varies, and one beyond each max.

    Samples are cut, or repeated from their start.

    Args:
        signature: With a dimension that varies.
        inputs: The proof's samples.
        folder: For new folders.

    Returns:
        The samples, and those beyond by what is too large in them.
    """
    import torch

    from trainer.model.signature import resize_inputs

    usual = {name: dimension.opt for name, dimension in signature.dimensions.items()}
    samples = inputs.fill(END_SAMPLES)
    tensors = tuple(torch.from_numpy(samples[name]) for name in signature.inputs)

    def resized(sizes: Mapping[str, int]) -> Arrays:
        found = resize_inputs(tensors, signature, {**usual, **sizes})
        return {one: tensor.numpy() for one, tensor in zip(signature.inputs, found, strict=True)}

    dimensions = signature.dimensions.items()
    ends = [{name: size} for name, dimension in dimensions for size in (dimension.min, dimension.max)]
    beyond = {name: dimension.max + dimension.multiple for name, dimension in dimensions}
    return store_arrays(folder / "ends-inputs", map(resized, ends)), {
        f"{name} {size}": store_arrays(folder / f"beyond-{number}", [resized({BATCH: 1, name: size})])
        for number, (name, size) in enumerate(beyond.items())
    }


def write_ends(model: nn.Module, signature: Signature, inputs: StoredArrays, folder: Path) -> Ends | None:
    """Write what `write_end_inputs` writes, and torch's outputs of it; None where no dimension varies.

    Args:
        model: In evaluation mode.
        signature: Of the model.
        inputs: The proof's samples.
        folder: For new folders.
    """
    from trainer.export.gates.tensors import run_torch

    if not signature.dimensions:
        return None
    stored, beyond = write_end_inputs(signature, inputs, folder)
    batches = stored.batches(END_SAMPLES)
    outputs = store_arrays(folder / "ends-torch", (run_torch(model, signature, one) for one in batches))
    return Ends(stored, outputs, beyond)


def write_graph_outputs(
    graph: Path, inputs: StoredArrays, folder: Path, *, batch_size: int, threads: int, precision: str = "fp32"
) -> StoredArrays:
    """Write the outputs of an ONNX file in ONNX Runtime, at the level of its precision."""
    run = parity.open_graph(graph, threads=threads, precision=precision)
    return store_arrays(folder, (run(batch) for batch in inputs.batches(batch_size)))


def measure_batches(graph: Path, inputs: StoredArrays, sizes: list[int], *, threads: int) -> dict[int, float]:
    """Return by batch size how far the outputs of a batch are from those of `_ALONE` samples one by one.

    The largest difference over the size of an output, of the worst output: over its range, or where that is smaller
    its largest number, of which float32 rounds a part. Batches are filled by repeating samples.
    """
    run = parity.open_graph(graph, threads=threads)
    pool = inputs.fill(min(_ALONE, max(part.samples for part in inputs.parts)))
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
