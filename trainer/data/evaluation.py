"""Evaluation batches of a split, read by loader processes and finished on the device.

Batches are the same for any number of ranks: rank r reads the batches r, r + ranks, ... of the split.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import NamedTuple, cast

import torch

from contracts.errors import ConfigError
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock, leaves, to_device
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.reader import Origin, ShardReader
from trainer.tasks.metrics import Calling
from trainer.tasks.task import Batch, Mode, Task

# Batches that each loader process prepares ahead; evaluation batches are large.
_PREFETCH_FACTOR = 2


class EvaluationBatch(NamedTuple):
    """A batch of an evaluation."""

    tensors: Batch
    """Result of `to_model`."""
    places: range
    """Sample positions in the split."""
    origins: tuple[Origin, ...] = ()
    """Origins of the samples; empty unless the loader has `origins`."""


class EvaluationLoader:
    """Evaluation batches of one rank, for repeated evaluations; loader processes persist.

    `rounds` is the maximum number of batches over ranks. `calling` wraps the task's `to_model`. With `origins`, batches
    have the origins of their samples.
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
        calling: Calling = nullcontext,
        origins: bool = False,
    ) -> None:
        self._reader, self._task, self._calling = reader, task, calling
        self._device = device or torch.device("cpu")
        self._mode = Mode(training=False, memory_format=memory_format)
        samples = len(reader)
        self.rounds = -(-samples // (batch_size * ranks))
        starts = range(rank * batch_size, samples, ranks * batch_size)
        self._places = [range(start, min(start + batch_size, samples)) for start in starts]
        self._loader = make_loader(
            SlotDataset(reader, task, seed=None, origins=origins),
            [SlotRequest.of(places, number) for number, places in enumerate(self._places)],
            # A single batch is read in this process.
            num_workers=min(num_workers, max(0, len(self._places) - 1)),
            prefetch_factor=_PREFETCH_FACTOR,
            pin_memory=self._device.type == "cuda",
            keeps_processes=True,
        )

    def batches(self) -> Iterator[EvaluationBatch]:
        """Yield batches in index order, on the device.

        Raises:
            DataError: A sample is damaged.
            ConfigError: The task fails on a sample, or does not return tensors.
        """
        for slot in to_device(self._read(), self._device, DataClock(self._device)):
            with self._calling("to_model"):
                batch = self._task.to_model(slot.batch, self._mode)
            yield EvaluationBatch(checked_batch(batch), self._places[slot.request.slot], slot.origins)

    def _read(self) -> Iterator[SlotBatch]:
        slots = read_slots(self._loader)
        # Loader processes first: a fork would copy locks of the prefetcher's threads.
        with closing(self._reader.prefetcher_of_split().start()) as ahead:
            for slot in slots:
                ahead.advance(slot.request.samples[0])
                yield slot


def checked_batch(batch: object) -> Batch:
    """Return a batch of `to_model` if it has tensors only: verifying an export stores it on disk.

    Raises:
        ConfigError: It is not a dictionary of tensors.
    """
    for name, leaf in leaves(batch) if isinstance(batch, dict) else [("", batch)]:
        if not name or not isinstance(leaf, torch.Tensor):
            raise ConfigError(
                f"the task's to_model returned a {type(leaf).__name__}{f' as {name}' if name else ''} in evaluation",
                allowed="a dictionary of tensors, or of dictionaries, lists and tuples of tensors",
                todo="return tensors alone where mode.training is false",
            )
    return cast(Batch, batch)
