"""Samples of the gates: at most 512 of the test split, stratified by class; and the calibration samples of int8.

Here: `draw_samples`, `stratify` (which samples), `write_proof`, `write_calibration` (inputs on disk) and
`end_inputs` (sizes at the ends of dimensions). A draw is a function of the labels in the index, the number and the
seed: `shardline verify` draws the same. numpy and torch are imported inside functions: stages that reuse their output
import this module too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import ShardManifest
from contracts.artifacts.signature import Signature

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainer.export.arrays import Arrays, Batches
    from trainer.export.inputs import Inputs
    from trainer.tasks.task import Task

SPLIT = "test"
PROOF_SAMPLES = 512
"""Most samples of the test split that the gates run."""
CALIBRATION_SAMPLES = 512
"""Most samples of the training split for calibrating int8."""
# Distinguishes these draws from others that use the run's seed.
_DRAW, _CALIBRATION_DRAW = 0x70726F6F66, 0x63616C6962


@dataclass(frozen=True)
class Proof:
    """Samples of the test split as the model takes them, on disk, in batches of the tuned size."""

    inputs: Batches
    extras: tuple[Path, ...]
    """Other entries of the batches, such as labels: one torch file per batch."""
    places: Sequence[int]
    """Places of the samples in the test split, in rising order."""


def draw_samples(shards_uri: str, shards: ShardManifest, *, most: int, seed: int) -> Sequence[int]:
    """Return at most `most` places of the test split, rising, stratified by class where labels are classes.

    Args:
        shards_uri: Folder of the shards.
        shards: Their manifest.
        most: Most samples.
        seed: The run's.
    """
    from records.index import SampleIndex

    entry = shards.splits[SPLIT]
    if entry.samples <= most:
        return range(entry.samples)
    return stratify(SampleIndex(shards, shards_uri).labels(entry.first, entry.samples), most, seed)


def stratify(labels: npt.NDArray[np.int32], most: int, seed: int) -> list[int]:
    """Return `most` places in ascending order, each label with its share to within one sample, drawn by the seed.

    Samples are sorted by label, shuffled within a label by the seed, and taken at equal distances ("systematic
    sampling").

    Args:
        labels: [N] of all samples, more than `most`; all equal if labels are not classes.
        most: Samples to draw.
        seed: Of the draw.
    """
    import numpy as np

    from trainer.data.randomness import hash_integers, hashes

    count = len(labels)
    drawn = hashes(np.arange(count, dtype=np.uint64), hash_integers(seed, _DRAW))
    by_label = np.lexsort((drawn, labels))
    return sorted(by_label[(np.arange(most) * count + count // 2) // most].tolist())


def write_proof(inputs: Inputs, task: Task, folder: Path) -> Proof:
    """Write the proof's samples into a new folder, prepared as in evaluation.

    Args:
        inputs: Of the export.
        task: Its task.
        folder: A new folder.

    Raises:
        DataError: A sample is damaged.
        OSError: The files cannot be written.
    """
    import torch

    from trainer.export.arrays import write_batches

    seed = inputs.config.run.seed
    places = draw_samples(inputs.shards_uri, inputs.shards, most=PROOF_SAMPLES, seed=seed)
    extras: list[Path] = []
    names = task.signature.inputs

    def prepare() -> Iterator[Arrays]:
        for batch in _read_batches(inputs, task, SPLIT, places):
            stream = io.BytesIO()
            torch.save({name: value for name, value in batch.items() if name not in names}, stream)
            extras.append(folder / f"{len(extras):05d}.extras")
            extras[-1].write_bytes(stream.getbuffer())
            yield _as_arrays(task, batch)

    stored = write_batches(folder, prepare())
    return Proof(stored, tuple(extras), places)


def write_calibration(inputs: Inputs, task: Task, folder: Path, samples: int) -> Batches:
    """Write training samples as the model takes them in evaluation, drawn by the seed, or all if there are fewer.

    A bad sample is replaced where training does so (data.on_bad_sample).

    Raises:
        DataError: A sample is damaged.
        OSError: The files cannot be written.
    """
    import numpy as np

    from trainer.data.randomness import hash_integers, permute
    from trainer.export.arrays import write_batches

    available = inputs.shards.splits["train"].samples
    key = hash_integers(inputs.config.run.seed, _CALIBRATION_DRAW)
    drawn = permute(available, key, np.arange(min(samples, available)))
    # Rising: shards are read from front to back.
    batches = _read_batches(inputs, task, "train", sorted(drawn.tolist()))
    return write_batches(folder, (_as_arrays(task, batch) for batch in batches))


def _read_batches(inputs: Inputs, task: Task, split: str, places: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield batches of the tuned size, as the task makes them for evaluation."""
    from trainer.data.cursor import SlotRequest
    from trainer.data.evaluation import checked_batch
    from trainer.data.loader import SlotDataset
    from trainer.data.reader import ShardReader
    from trainer.tasks.loading import calling
    from trainer.tasks.task import Mode

    scattered = len(places) < inputs.shards.splits[split].samples
    reader = ShardReader(
        inputs.shards_uri, inputs.shards, split, inputs.config.data, tuple(task.fields), scattered=scattered
    )
    replace_bad = split == "train" and inputs.config.data.on_bad_sample == "replace"
    dataset = SlotDataset(reader, task, seed=None, replace_bad=replace_bad)
    size = inputs.config.export.batches[0]
    for start in range(0, len(places), size):
        slot = dataset.read(SlotRequest.of(places[start : start + size]))
        with calling(inputs.config, "to_model"):
            batch = checked_batch(task.to_model(slot.batch, Mode(training=False)))
        yield batch


def _as_arrays(task: Task, batch: dict[str, Any]) -> Arrays:
    from trainer.export.tensors import take_inputs

    tensors = take_inputs(batch, task.signature)
    return {name: tensor.numpy() for name, tensor in zip(task.signature.inputs, tensors, strict=True)}


def end_inputs(signature: Signature, batch: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Yield samples at the smallest and the largest size of each dimension that varies, with the size's name.

    Args:
        signature: Of the model.
        batch: Samples; they are cut, or repeated from their start.
    """
    import torch

    from trainer.model.signature import resize_inputs

    tensors = tuple(torch.from_numpy(batch[name]) for name in signature.inputs)
    usual = {name: dimension.opt for name, dimension in signature.dimensions.items()}
    for name, dimension in signature.dimensions.items():
        for size in (dimension.min, dimension.max):
            resized = resize_inputs(tensors, signature, {**usual, name: size})
            arrays = [tensor.numpy() for tensor in resized]
            yield f"{name} {size}", dict(zip(signature.inputs, arrays, strict=True))
