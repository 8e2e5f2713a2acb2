"""Batches of an evaluation: a split from end to end, read by loader processes, normalised on the device.

Batches have a fixed size and place whoever takes them: rank r takes the batches r, r + ranks, ... of the split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import UserError
from trainer.data.bucket.cache_folder import CacheFolder
from trainer.data.clock import DataClock
from trainer.data.device import to_device
from trainer.data.loader import as_it_is, begin_loader_process
from trainer.data.reader import ShardReader
from trainer.data.sockets import shorten_socket_paths
from trainer.tasks.image_classification.transforms import EvaluationTransform, normalise

# Batches that each loader process prepares ahead: those of an evaluation are large, and all alike.
_PREFETCH_FACTOR = 2
# Iterators of loaders that were left when training was told to stop. Their processes ignore SIGTERM and may be busy:
# whoever let go of an iterator would wait for them. They end with the rank (trainer/supervise/signals.py).
_abandoned: list[object] = []


@dataclass(frozen=True)
class EvaluationBatch:
    """Images as they are decoded and cropped, and their labels."""

    images: torch.Tensor
    """[B, S, S, 3] uint8."""
    labels: torch.Tensor
    """[B] int64."""

    def pin_memory(self) -> EvaluationBatch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


@dataclass
class EvaluationDataset(Dataset[EvaluationBatch | UserError]):
    """Maps places of a split to their batch, or to what is wrong with a sample: returned, as in SlotDataset."""

    reader: ShardReader
    transform: EvaluationTransform

    def __getitem__(self, places: range) -> EvaluationBatch | UserError:
        """Read, decode and crop the samples at `places`."""
        try:
            self.reader.prepare(list(places))
            samples = [self.reader.read(place) for place in places]
        except UserError as error:
            return error
        images = np.stack([self.transform.pixels(image) for image, _ in samples])
        return EvaluationBatch(torch.from_numpy(images), torch.tensor([label for _, label in samples]))


def evaluation_batches(
    shards_uri: str,
    manifest: ShardManifest,
    split: str,
    transform: EvaluationTransform,
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
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (images [B, 3, S, S] float32, labels [B] int64) of a split in index order, on the device.

    Over all ranks every sample comes once. `local_ranks` of them are on this machine and share the folder. `data` and
    `folder` as in `ShardReader`.

    Raises:
        DataError: A sample is damaged.
    """
    device = device or torch.device("cpu")
    dataset = EvaluationDataset(ShardReader(shards_uri, manifest, split, data, folder), transform)
    samples = len(dataset.reader)
    starts = range(rank * batch_size, samples, ranks * batch_size)
    batches = [range(start, min(start + batch_size, samples)) for start in starts]
    # A single batch is read here: a process for it would not run beside anything.
    num_workers = min(num_workers, max(0, len(batches) - 1))
    loaded = _read(dataset, batches, num_workers, local_ranks, pin_memory=device.type == "cuda")
    for batch in to_device(loaded, device, DataClock(device)):
        yield normalise(batch.images, transform.mean, transform.std, memory_format), batch.labels


def _read(
    dataset: EvaluationDataset, batches: list[range], num_workers: int, local_ranks: int, *, pin_memory: bool
) -> Iterator[EvaluationBatch]:
    if num_workers:
        shorten_socket_paths()
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
    loaded = iter(loader)
    try:
        with dataset.reader.read_ahead(local_ranks) as advance:
            for number, places in enumerate(batches, start=1):
                batch = next(loaded)
                if isinstance(batch, UserError):
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
