"""Whole slots, made by loader processes or in this one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from contracts.errors import ConfigError, UserError
from contracts.process import end_with_parent
from records.decode import UndecodableImage
from records.index import DamagedSample
from trainer.data.device import find_tensor, map_tensors
from trainer.data.order.cursor import SlotRequest
from trainer.data.randomness import global_generators_kept, seed_global_generators
from trainer.data.reader import ShardReader
from trainer.supervise.signals import ignore_stop_signals
from trainer.tasks.load import describe_failure
from trainer.tasks.optional import count_units
from trainer.tasks.protocol import Batch, Mode, Prepared, RefusedSample, Task

# Where loader processes pass batches.
SHARED_MEMORY = Path("/dev/shm")
# Keys of the draws that are no sample's, so that they share no stream with one (hash_integers takes any).
_OF_OWN_CODE, _OF_SLOT = 1, 2


@dataclass(frozen=True)
class Replacement:
    """A bad sample and the sample that was read in its place, by their places in the split."""

    sample: int
    by: int
    reason: str


@dataclass(frozen=True)
class SlotBatch:
    """What the loader yields for a request: the task's batch, which is finished where the model is."""

    request: SlotRequest
    batch: Batch
    """As the task's `collate` returned it."""
    replaced: tuple[Replacement, ...] = ()
    units: int = 0
    """Of the task's unit; 0 where it has none."""

    def pin_memory(self) -> SlotBatch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        pinned: Batch = map_tensors(self.batch, torch.Tensor.pin_memory)
        return replace(self, batch=pinned)


@dataclass
class SlotDataset(Dataset[SlotBatch | UserError]):
    """Maps a request to its batch, or to what is wrong with its samples.

    Errors are returned, not raised: torch would rebuild one raised in a loader process from its text alone.
    """

    reader: ShardReader
    task: Task
    seed: int
    replace_bad: bool = False
    """Whether a bad sample is replaced by the next of its class; otherwise it is an error."""

    def __getitem__(self, request: SlotRequest) -> SlotBatch | UserError:
        """Read the samples of one slot, prepare and collate them."""
        try:
            slot = self.read(request)
            to_shared_memory(slot.batch)
            return slot
        except UserError as error:
            return error

    def read(self, request: SlotRequest) -> SlotBatch:
        """As above, but raise what is wrong.

        Raises:
            DataError: A sample is damaged.
            ConfigError: The task fails on a sample, or makes no batch of tensors.
        """
        samples, replaced = self.prepare(request)
        key = (self.seed, request.step, request.slot, 0, _OF_SLOT)
        with global_generators_kept() if self._seeds else nullcontext():
            if self._seeds:
                seed_global_generators(*key)
            batch = collate(self.task, samples, Mode(training=True, key=key), of=(self.reader, request.samples))
        return SlotBatch(request, batch, tuple(replaced), count_units(self.task, batch))

    @property
    def _seeds(self) -> bool:
        """Whether own code may draw from global generators; without it nobody touches them."""
        return bool(getattr(self.task, "uses_global_generators", True))

    def prepare(self, request: SlotRequest) -> tuple[list[Prepared], list[Replacement]]:
        """Return the prepared samples of a slot, and what was read in place of others; raises as `read`."""
        prepared: list[Prepared] = []
        replaced: list[Replacement] = []
        self.reader.prepare(request.samples)
        with global_generators_kept() if self._seeds else nullcontext():
            for sample in request.samples:
                prepared.append(self._prepare_sample(sample, request.epoch, replaced))
        return prepared, replaced

    def _prepare_sample(self, sample: int, epoch: int, replaced: list[Replacement]) -> Prepared:
        """Return a prepared sample, or the first good one of its class behind it.

        The random numbers stay those of the sample that was asked for, so the one that steps in does not come twice
        with the same crop in one epoch.
        """
        place, reasons = sample, []
        while True:
            if self._seeds:
                seed_global_generators(self.seed, epoch, sample, _OF_OWN_CODE)
            mode = Mode(training=True, key=(self.seed, epoch, sample))
            try:
                prepared = prepare_sample(self.task, self.reader, place, mode)
            except DamagedSample as error:
                # The search goes through the index, all of it for a rare class: not before an error.
                if not self.replace_bad or (place := self.reader.next_of_class(place)) == sample:
                    raise
                reasons.append(error.given)
                continue
            if place != sample:
                replaced.append(Replacement(sample, place, "; ".join(reasons)))
            return prepared


def prepare_sample(task: Task, reader: ShardReader, place: int, mode: Mode) -> Prepared:
    """Read one sample and have the task prepare it.

    Args:
        task: The task.
        reader: Of the split.
        place: Of the sample in the split.
        mode: Of the sample.

    Raises:
        DamagedSample: Its bytes are damaged, or cannot be decoded.
        ConfigError: The task fails on it; the sample is named.
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
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise ConfigError(
            f"the task's prepare failed on {reader.describe(place)}: {describe_failure(error)}",
            allowed="a prepare that takes every sample of the shards",
            todo="correct prepare, or shard without this sample",
        ) from error


def collate(
    task: Task, samples: list[Prepared], mode: Mode, *, of: tuple[ShardReader, Sequence[int]] | None = None
) -> Batch:
    """Have the task make a batch of prepared samples.

    Args:
        task: The task.
        samples: The samples.
        mode: Of the batch.
        of: Their reader and places, by which an error names them.

    Raises:
        ConfigError: It fails, or makes no dictionary with tensors.
    """
    try:
        batch = task.collate(samples, mode)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # as above
        raise ConfigError(
            f"the task's collate failed on {len(samples)} samples: {describe_failure(error)}"
            + ("" if of is None else f"; samples: {of[0].describe_some(of[1])}"),
            allowed="a collate that takes what prepare returns",
            todo="correct collate",
        ) from error
    if not isinstance(batch, dict) or find_tensor(batch) is None:
        shown = f"a dictionary without tensors ({', '.join(map(str, batch))})" if isinstance(batch, dict) else batch
        raise ConfigError(
            f"the task's collate returned {shown if isinstance(shown, str) else 'a ' + type(shown).__name__}",
            allowed="a dictionary of tensors, which may be nested",
            todo="return for example {'images': torch.stack(...), 'label': torch.tensor(...)}",
        )
    return batch


def to_shared_memory(batch: Batch) -> None:
    """Move a batch to where the rank of this loader process reads it; elsewhere it stays as it is.

    torch does it when it sends the batch, in a thread that drops a batch for which there is no room: the rank would
    wait for it. In shared memory already, it is passed on as it is.

    Raises:
        ConfigError: There is no room.
    """
    if get_worker_info() is None:
        return
    try:
        map_tensors(batch, _share)
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


def _share(tensor: torch.Tensor) -> torch.Tensor:
    # An empty one has no memory to share.
    if tensor.layout == torch.strided and tensor.untyped_storage().nbytes():
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def make_loader(
    dataset: SlotDataset, requests: Iterable[SlotRequest], *, num_workers: int, prefetch_factor: int, pin_memory: bool
) -> DataLoader[SlotBatch | UserError]:
    """Return a loader that gives one SlotBatch per request, in order; iterate it by `read_slots`."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=requests,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        collate_fn=as_it_is,
        pin_memory=pin_memory,
        worker_init_fn=begin_loader_process if num_workers else None,
    )


def begin_loader_process(worker: int) -> None:
    """Begin a loader process: it ends with its rank, and only with it (trainer/supervise/signals.py)."""
    end_with_parent()
    ignore_stop_signals()


def read_slots(loader: DataLoader[SlotBatch | UserError]) -> Iterator[SlotBatch]:
    """Yield the batches of a loader.

    Raises:
        DataError: A sample is damaged.
    """
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


def as_it_is(batch: Any) -> Any:
    """Collate nothing: a dataset here gives whole batches."""
    return batch
