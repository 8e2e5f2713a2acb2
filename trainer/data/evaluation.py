"""Batches of an evaluation: a split from end to end, read by loader processes, finished on the device.

Batches have a fixed size and place whoever takes them: rank r takes the batches r, r + ranks, ... of the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch.utils.data import DataLoader, Dataset

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError, UserError
from trainer.data.clock import DataClock
from trainer.data.device import find_other, map_tensors, to_device
from trainer.data.loader import as_it_is, begin_loader_process, collate, prepare_sample, to_shared_memory
from trainer.data.reader import ShardReader
from trainer.tasks.metrics import Calling
from trainer.tasks.protocol import Batch, Mode, Task

# Batches that each loader process prepares ahead: those of an evaluation are large, and all alike.
_PREFETCH_FACTOR = 2
# Loaders that were left when training was told to stop. Their processes ignore SIGTERM and may be busy:
# whoever let go of a loader would wait for them. They end with the rank (trainer/supervise/signals.py).
_abandoned: list[object] = []


@dataclass(frozen=True)
class EvaluationBatch:
    """A batch as the task's `collate` returned it."""

    batch: Batch
    samples: int

    def pin_memory(self) -> EvaluationBatch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        pinned: Batch = map_tensors(self.batch, torch.Tensor.pin_memory)
        return replace(self, batch=pinned)


@dataclass
class EvaluationDataset(Dataset[EvaluationBatch | UserError]):
    """Maps places of a split to their batch, or to what is wrong with a sample: returned, as in SlotDataset."""

    reader: ShardReader
    task: Task

    def __getitem__(self, places: Sequence[int]) -> EvaluationBatch | UserError:
        """Read, prepare and collate the samples at `places`."""
        mode = Mode(training=False)
        try:
            self.reader.prepare(places)
            samples = [prepare_sample(self.task, self.reader, place, mode) for place in places]
            batch = collate(self.task, samples, mode, of=(self.reader, places))
            to_shared_memory(batch)
            return EvaluationBatch(batch, len(places))
        except UserError as error:
            return error


class EvaluationLoader:
    """Batches of a rank's part of a split, as often as it is evaluated.

    Args:
        reader: Of the split.
        task: The task.
        batch_size: Samples per batch.
        rank: This one's number.
        ranks: Processes that evaluate together: over all of them every sample comes once.
        num_workers: Loader processes.
        device: Where batches are finished; unset: the CPU.
        memory_format: Of images there.
        keeps_processes: Whether the loader processes wait for the next evaluation; else they end with each.
        calling: `to_model` is called in it; it may say where own code failed.
    """

    def __init__(
        self,
        reader: ShardReader,
        task: Task,
        batch_size: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        num_workers: int = 0,
        device: torch.device | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        keeps_processes: bool = False,
        calling: Calling = nullcontext,
    ) -> None:
        self._reader, self._task, self._calling = reader, task, calling
        self._device = device or torch.device("cpu")
        self._mode = Mode(training=False, memory_format=memory_format)
        starts = range(rank * batch_size, len(reader), ranks * batch_size)
        self._batches = [range(start, min(start + batch_size, len(reader))) for start in starts]
        # A single batch is read here: a process for it would not run beside anything.
        self._num_workers = min(num_workers, max(0, len(self._batches) - 1))
        self._loader: DataLoader[EvaluationBatch | UserError] = DataLoader(
            EvaluationDataset(reader, task),
            batch_size=None,
            sampler=self._batches,
            num_workers=self._num_workers,
            prefetch_factor=_PREFETCH_FACTOR if self._num_workers else None,
            collate_fn=as_it_is,
            pin_memory=self._device.type == "cuda",
            worker_init_fn=begin_loader_process if self._num_workers else None,
            persistent_workers=keeps_processes and self._num_workers > 0,
        )

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield batches in index order, as `to_model` returns them on the device, and their samples.

        Raises:
            DataError: A sample is damaged.
            ConfigError: The task fails on a sample, or makes no batch of tensors.
        """
        for loaded in to_device(self._read(), self._device, DataClock(self._device)):
            with self._calling("to_model"):
                batch = self._task.to_model(loaded.batch, self._mode)
            yield checked_batch(batch), loaded.samples

    def _read(self) -> Iterator[EvaluationBatch]:
        # Its processes first: what fetches ahead has threads, whose locks a fork would copy.
        loaded = iter(self._loader)
        number = 0
        try:
            with self._reader.read_ahead(self._batches) as advance:
                for number, places in enumerate(self._batches, start=1):
                    batch = next(loaded)
                    if isinstance(batch, UserError):
                        # Whoever keeps the error would keep the loader, and its processes with it.
                        del self._loader, loaded
                        raise batch
                    if number == len(self._batches):
                        # Whoever takes the batches does not ask for one more.
                        next(loaded, None)
                    advance(places.start)
                    yield batch
        except GeneratorExit:
            if self._num_workers and number < len(self._batches):
                _abandoned.append(self._loader)
            raise


def evaluation_batches(
    shards_uri: str,
    manifest: ShardManifest,
    split: str,
    task: Task,
    batch_size: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    data: DataSection | None = None,
    num_workers: int = 0,
    calling: Calling = nullcontext,
) -> Iterator[tuple[Batch, int]]:
    """Yield the batches of a split once; see `EvaluationLoader` and `ShardReader`."""
    reader = ShardReader(shards_uri, manifest, split, data, tuple(task.fields))
    loader = EvaluationLoader(
        reader, task, batch_size, rank=rank, ranks=ranks, num_workers=num_workers, calling=calling
    )
    return loader.batches()


def checked_batch(batch: object) -> Batch:
    """Return what `to_model` made for an evaluation, which is kept on disk while an export is proven.

    Raises:
        ConfigError: It is no dictionary of tensors.
    """
    other = find_other(batch) if isinstance(batch, dict) else f"a {type(batch).__name__}"
    if other:
        raise ConfigError(
            f"the task's to_model returned {other} in evaluation",
            allowed="a dictionary of tensors, or of dictionaries, lists and tuples of tensors",
            todo="return tensors alone where mode.training is false",
        )
    return cast(Batch, batch)
