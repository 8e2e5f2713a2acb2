"""Batches of an evaluation: a split from end to end, read by loader processes, finished on the device.

Batches have a fixed size and place whoever takes them: rank r takes the batches r, r + ranks, ... of the split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch.utils.data import DataLoader, Dataset

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError, UserError
from trainer.data.bucket.cache_folder import CacheFolder
from trainer.data.clock import DataClock
from trainer.data.device import find_other, map_tensors, to_device
from trainer.data.loader import as_it_is, begin_loader_process, collate, prepare_sample, to_shared_memory
from trainer.data.reader import ShardReader
from trainer.tasks.metrics import Calling
from trainer.tasks.protocol import Batch, Mode, Task

# Batches that each loader process prepares ahead: those of an evaluation are large, and all alike.
_PREFETCH_FACTOR = 2
# Iterators of loaders that were left when training was told to stop. Their processes ignore SIGTERM and may be busy:
# whoever let go of an iterator would wait for them. They end with the rank (trainer/supervise/signals.py).
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
            self.reader.prepare(list(places))
            samples = [prepare_sample(self.task, self.reader, place, mode) for place in places]
            batch = collate(self.task, samples, mode, of=(self.reader, places))
            to_shared_memory(batch)
            return EvaluationBatch(batch, len(places))
        except UserError as error:
            return error


def evaluation_batches(
    shards_uri: str,
    manifest: ShardManifest,
    split: str,
    task: Task,
    batch_size: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    local_ranks: int = 1,
    data: DataSection | None = None,
    folder: CacheFolder | None = None,
    num_workers: int = 0,
    device: torch.device | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    calling: Calling = nullcontext,
    shows_rows: bool = False,
) -> Iterator[tuple[Batch, int]]:
    """Yield batches of a split in index order, as `to_model` returns them on the device, and their samples.

    Over all ranks every sample comes once. `local_ranks` of them are on this machine and share the folder. `data`,
    `folder` and `shows_rows` as in `ShardReader`. `to_model` is called in `calling`, which may say where own code
    failed.

    Raises:
        DataError: A sample is damaged.
        ConfigError: The task fails on a sample, or makes no batch of tensors.
    """
    device = device or torch.device("cpu")
    mode = Mode(training=False, memory_format=memory_format)
    dataset = EvaluationDataset(ShardReader(shards_uri, manifest, split, data, folder, tuple(task.fields)), task)
    dataset.reader.shows_rows = shows_rows
    samples = len(dataset.reader)
    starts = range(rank * batch_size, samples, ranks * batch_size)
    batches = [range(start, min(start + batch_size, samples)) for start in starts]
    # A single batch is read here: a process for it would not run beside anything.
    num_workers = min(num_workers, max(0, len(batches) - 1))
    loaded = _read(dataset, batches, num_workers, local_ranks, pin_memory=device.type == "cuda")
    for found in to_device(loaded, device, DataClock(device)):
        with calling("to_model"):
            batch = task.to_model(found.batch, mode)
        yield checked_batch(batch), found.samples


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


def _read(
    dataset: EvaluationDataset, batches: list[range], num_workers: int, local_ranks: int, *, pin_memory: bool
) -> Iterator[EvaluationBatch]:
    loader: DataLoader[EvaluationBatch | UserError] = DataLoader(
        dataset,
        batch_size=None,
        sampler=_Places(batches),
        num_workers=num_workers,
        prefetch_factor=_PREFETCH_FACTOR if num_workers else None,
        collate_fn=as_it_is,
        pin_memory=pin_memory,
        worker_init_fn=begin_loader_process if num_workers else None,
    )
    # Its processes first: what fetches ahead has threads, whose locks a fork would copy.
    loaded: Iterator[EvaluationBatch | UserError] = iter(loader)
    try:
        with dataset.reader.read_ahead(local_ranks, batches) as advance:
            for number, places in enumerate(batches, start=1):
                batch = next(loaded)
                if isinstance(batch, UserError):
                    # Whoever keeps the error would keep the loader, and its processes with it.
                    loaded = iter(())
                    raise batch
                if number == len(batches):
                    # At its end a loader ends its processes; who takes the batches does not ask for one more.
                    next(loaded, None)
                advance(places.start)
                yield batch
    except GeneratorExit:
        if num_workers and number < len(batches):
            _abandoned.append(loaded)
        raise


@dataclass
class _Places(torch.utils.data.Sampler[range]):
    batches: Iterable[range]

    def __iter__(self) -> Iterator[range]:
        return iter(self.batches)
