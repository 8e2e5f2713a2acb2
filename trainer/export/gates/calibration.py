"""The training samples whose activations decide int8's scales, and which nodes fit into fp16.

Here: `draw_places` and `write_calibration`; trainer/export/task.py runs them in a process of their own. Samples are
prepared as in evaluation, since that is what the exported model will see, and come from the training split, since the
test split is what the result is judged by. This module never looks at a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contracts.artifacts.export import Calibration
from records.index import DamagedSample
from trainer.data.loader import collate, prepare_sample
from trainer.data.randomness import hash_integers, permute
from trainer.data.reader import ShardReader
from trainer.export.gates.arrays import Arrays, StoredArrays, store_arrays
from trainer.export.gates.tensors import take_inputs
from trainer.export.inputs import Inputs
from trainer.tasks.task import Mode, Task

SPLIT = "train"

# Distinguishes this draw from others that use the run's seed (the order of an epoch, augmentation).
_DRAW = 0x63616C6962
# Samples prepared at a time: of images at 224 pixels and float32 19 MB, beside the originals.
_BATCH_SIZE = 32


def draw_places(samples_in_split: int, samples: int, seed: int) -> list[int]:
    """Return the places of a random choice without replacement, in rising order; all of them where there are fewer.

    A function of its arguments alone, in every version of numpy. Rising, so that shards are read from front to back.

    Args:
        samples_in_split: Samples to draw from.
        samples: Samples to draw.
        seed: The run's.
    """
    wanted = np.arange(min(samples, samples_in_split))
    return sorted(permute(samples_in_split, hash_integers(seed, _DRAW), wanted).tolist())


def write_calibration(
    inputs: Inputs, task: Task, folder: Path, *, samples: int, seed: int
) -> tuple[StoredArrays, Calibration]:
    """Write training samples as the model takes them. Equal arguments give equal files. Memory is that of a batch.

    Args:
        inputs: The shards, and the section data: how a bucket is read, and whether a sample that cannot be decoded is
            replaced, as in training.
        task: The task.
        folder: A new folder for the files.
        samples: Samples to draw; there are fewer where the split is smaller (check_inputs refuses too small ones).
        seed: The run's.

    Returns:
        The samples, and what was drawn: the hash is over their keys, in order.

    Raises:
        DataError: A sample is damaged.
        OSError: The files cannot be written; nothing is left of them.
    """
    shards, data = inputs.shards, inputs.config.data
    available = shards.splits[SPLIT].samples
    places = draw_places(available, samples, seed)
    reader = ShardReader(inputs.shards_uri, shards, SPLIT, data, tuple(task.fields), scattered=len(places) < available)
    replace_bad = data.on_bad_sample == "replace"
    keys, mode, signature = hashlib.sha256(), Mode(training=False), task.signature

    def prepare() -> Iterator[Arrays]:
        for start in range(0, len(places), _BATCH_SIZE):
            batch = places[start : start + _BATCH_SIZE]
            reader.prepare(batch)
            found = [_read(task, reader, place, mode, replace_bad=replace_bad) for place in batch]
            for _, key in found:
                keys.update(key.encode())
            tensors = take_inputs(task.to_model(collate(task, [sample for sample, _ in found], mode), mode), signature)
            yield {name: tensor.numpy() for name, tensor in zip(signature.inputs, tensors, strict=True)}

    stored = store_arrays(folder, prepare())
    document = Calibration(
        samples=len(places), seed=seed, shards_fingerprint=shards.fingerprint, sha256=keys.hexdigest()
    )
    return stored, document


def _read(task: Task, reader: ShardReader, place: int, mode: Mode, *, replace_bad: bool) -> tuple[Any, str]:
    """Return a prepared sample and its key, or those of the next good one of its class where training does so too."""
    current = place
    while True:
        try:
            prepared = prepare_sample(task, reader, current, mode)
        except DamagedSample:
            # The search ends where it began: a class without one good sample.
            if not replace_bad or (current := reader.next_of_class(current)) == place:
                raise
            continue
        return prepared, reader.origin_of(current)[1]
