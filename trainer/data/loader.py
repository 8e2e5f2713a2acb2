"""Load whole slots, in loader processes or in this process.

A prepared sample depends on (seed, epoch, sample) only, not on rank, loader process, attempt or slot.
"""

from __future__ import annotations

import operator
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from contracts.errors import ConfigError, UserError
from contracts.process import end_with_parent, use_short_socket_folder
from records.decode import UndecodableImage
from records.index import DamagedSample
from trainer.data.cursor import SlotRequest
from trainer.data.device import leaves, map_tensors
from trainer.data.randomness import hash_integers
from trainer.data.reader import Origin, ShardReader
from trainer.supervise.stop import ignore_stop_signals
from trainer.tasks.loading import describe_failure
from trainer.tasks.task import Batch, Mode, Prepared, RefusedSample, Task

# Loader processes pass batches through this folder.
SHARED_MEMORY = Path("/dev/shm")
# Key suffixes of random streams that are not a sample's.
_USER_CODE_STREAM, _SLOT_STREAM = 1, 2


class Replacement(NamedTuple):
    """A bad sample and its replacement, by position in the split."""

    sample: int
    by: int
    reason: str


@dataclass(frozen=True)
class SlotBatch:
    """Batch of a request, from the task's `collate`."""

    request: SlotRequest
    batch: Batch
    replaced: tuple[Replacement, ...] = ()
    units: int = 0
    """Number of the task's unit (e.g. tokens); 0 without a unit and in evaluation."""
    origins: tuple[Origin, ...] = ()
    """Origins of the samples, if the dataset has `origins`."""

    def pin_memory(self) -> SlotBatch:
        """Return the batch in pinned memory; called by DataLoader."""
        pinned: Batch = map_tensors(self.batch, torch.Tensor.pin_memory)
        return replace(self, batch=pinned)


@dataclass
class SlotDataset(Dataset[SlotBatch | UserError]):
    """Maps a request to its batch, or to the error of its samples.

    Errors are returned, since torch rebuilds an error raised in a loader process from its text only.
    """

    reader: ShardReader
    task: Task
    seed: int | None
    """Seed of random numbers; None for evaluation, which is deterministic."""
    replace_bad: bool = False
    """Whether a bad sample is replaced by the next of its class instead of raising."""
    origins: bool = False
    """Whether batches have the origins of their samples."""

    def __post_init__(self) -> None:
        self.reader.keeps_origins = self.origins

    def __getitem__(self, request: SlotRequest) -> SlotBatch | UserError:
        """Read, prepare and collate the samples of a request."""
        try:
            slot = self.read(request)
            if get_worker_info() is not None:
                _to_shared_memory(slot.batch)
            return slot
        except UserError as error:
            return error

    def read(self, request: SlotRequest) -> SlotBatch:
        """Like `__getitem__`, but raise: DataError for a damaged sample, ConfigError if the task fails."""
        with nullcontext() if self.seed is None else global_generators_restored():
            samples, replaced = self.prepare(request)
            mode = self._mode((request.step, request.slot, 0, _SLOT_STREAM))
            batch = collate(self.task, samples, mode, names=lambda: self.reader.describe_some(request.samples))
        units = 0 if self.seed is None or not self.task.unit else count_units(self.task, batch)
        origins = self.reader.take_origins() if self.origins else ()
        return SlotBatch(request, batch, tuple(replaced), units, origins)

    def prepare(self, request: SlotRequest) -> tuple[list[Prepared], list[Replacement]]:
        """Return the prepared samples of a request and the replacements; raises like `read`."""
        replaced: list[Replacement] = []
        self.reader.prepare(request.samples)
        return [self._prepare_sample(sample, request.epoch, replaced) for sample in request.samples], replaced

    def _mode(self, key: tuple[int, ...], stream: tuple[int, ...] = ()) -> Mode:
        """Seed the global generators by the key of a sample or slot, and return its mode."""
        if self.seed is None:
            return Mode(training=False)
        seed_global_generators(self.seed, *key, *stream)
        return Mode(training=True, key=(self.seed, *key))

    def _prepare_sample(self, sample: int, epoch: int, replaced: list[Replacement]) -> Prepared:
        """Return a prepared sample, or the next good one of its class.

        The random numbers are those of the requested sample, so that a replacement is not cropped twice in the same way
        in one epoch.
        """
        place, reasons = sample, []
        while True:
            mode = self._mode((epoch, sample), (_USER_CODE_STREAM,))
            try:
                prepared = prepare_sample(self.task, self.reader, place, mode)
                break
            except DamagedSample as error:
                # Searching the index can be slow, so only after an error.
                if not self.replace_bad or (place := self.reader.next_of_class(place)) == sample:
                    raise
                reasons.append(error.given)
        if place != sample:
            replaced.append(Replacement(sample, place, "; ".join(reasons)))
        return prepared


@contextmanager
def global_generators_restored() -> Iterator[None]:
    """Restore the global generators of Python, numpy and torch at the end.

    Used once per slot, since it costs ten times as much as seeding.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


def seed_global_generators(*key: int) -> None:
    """Seed the global generators of Python, numpy (legacy) and torch (CPU) by a key."""
    seed = hash_integers(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # Not torch.manual_seed: it seeds all devices, which takes 0.2 ms.
    torch.default_generator.manual_seed(seed >> 1)


def prepare_sample(task: Task, reader: ShardReader, place: int, mode: Mode) -> Prepared:
    """Read one sample and prepare it with the task.

    Raises:
        DamagedSample: It is damaged or cannot be decoded.
        ConfigError: The task's `prepare` fails.
    """
    sample = reader.sample(place)
    try:
        return task.prepare(sample, mode)
    except UndecodableImage as error:
        raise reader.undecodable(place, error) from None
    except RefusedSample as error:
        raise ConfigError(
            f"{error.given}: {reader.describe(place)}", allowed=error.allowed, todo=error.todo
        ) from error.__cause__
    except (UserError, MemoryError):
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"the task's prepare failed on {reader.describe(place)}: {describe_failure(error)}",
            allowed="a prepare that takes every sample of the shards",
            todo="correct prepare, or shard without this sample",
        ) from error


def collate(task: Task, samples: list[Prepared], mode: Mode, *, names: Callable[[], str] | None = None) -> Batch:
    """Collate prepared samples with the task; errors include their `names`.

    Raises:
        ConfigError: `collate` fails, or does not return a dictionary with tensors.
    """
    try:
        batch = task.collate(samples, mode)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"the task's collate failed on {len(samples)} samples: {describe_failure(error)}"
            + (f"; samples: {names()}" if names else ""),
            allowed="a collate that takes what prepare returns",
            todo="correct collate",
        ) from error
    is_dict = isinstance(batch, dict)
    if not is_dict or not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves(batch)):
        description = f"dictionary without tensors ({', '.join(map(str, batch))})" if is_dict else type(batch).__name__
        raise ConfigError(
            f"the task's collate returned a {description}",
            allowed="a dictionary of tensors, which may be nested",
            todo="return for example {'images': torch.stack(...), 'label': torch.tensor(...)}",
        )
    return batch


def count_units(task: Task, batch: Batch) -> int:
    """Return the number of the task's unit in a batch.

    Raises:
        ConfigError: `count_units` fails, or does not return a non-negative integer.
    """
    try:
        units = task.count_units(batch)
        if type(units) is bool or operator.index(units) < 0:
            raise ValueError(f"it returned {units!r}")
        return operator.index(units)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"the task's count_units failed: {describe_failure(error)}",
            allowed="a whole number, from 0 on",
            todo="correct count_units (docs/tasks.md)",
        ) from error


def _to_shared_memory(batch: Batch) -> None:
    """Move a batch to shared memory, or raise ConfigError if it is full.

    torch does this in a thread that drops the batch if memory is full; the rank would wait forever.
    """
    try:
        # Empty tensors cannot be shared.
        map_tensors(batch, lambda t: t.share_memory_() if t.untyped_storage().nbytes() else t)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "No space left on device" not in str(error):
            raise
        status = os.statvfs(SHARED_MEMORY)
        total, free = (status.f_frsize * blocks / 1e6 for blocks in (status.f_blocks, status.f_bavail))
        raise ConfigError(
            f"{SHARED_MEMORY} ({total:.0f} MB, {free:.0f} MB of them free) has no room for a batch, which a loader "
            f"process passes on by it: {error}",
            allowed="room for data.prefetch_factor batches per loader process",
            todo="give it more (docker run --shm-size=2g; in Kubernetes an emptyDir of medium Memory, mounted there), "
            "or set data.num_workers=0, or a smaller parallel.slot_size",
        ) from None


def make_loader(
    dataset: SlotDataset,
    requests: Iterable[SlotRequest],
    *,
    num_workers: int,
    prefetch_factor: int,
    pin_memory: bool,
    keeps_processes: bool = False,
) -> DataLoader[SlotBatch | UserError]:
    """Return a loader with one SlotBatch per request, in order; iterate it with `read_slots`."""
    if num_workers:
        # Loader processes pass tensors on through sockets there, and without them would wait forever.
        use_short_socket_folder()
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=requests,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_init_worker if num_workers else None,
        persistent_workers=keeps_processes and num_workers > 0,
    )


def _init_worker(worker: int) -> None:
    """Tie a loader process to its rank: it ignores stop signals and ends with the rank."""
    end_with_parent()
    ignore_stop_signals()


def read_slots(loader: DataLoader[SlotBatch | UserError]) -> Iterator[SlotBatch]:
    """Yield the batches of a loader, or raise the error of a sample."""
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch
