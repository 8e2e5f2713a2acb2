"""Whole slots, made by loader processes or in this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import UserError
from trainer.cursor import SlotRequest, mix
from trainer.data.cache_folder import CacheFolder
from trainer.data.reader import ShardReader
from trainer.data.transforms import EvaluationTransform, TrainTransform


@dataclass(frozen=True)
class SlotBatch:
    """What the loader yields for a request."""

    request: SlotRequest
    images: torch.Tensor
    """[B, 3, S, S] float32, normalised."""
    labels: torch.Tensor
    """[B] int64."""

    def pin_memory(self) -> SlotBatch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        return SlotBatch(self.request, self.images.pin_memory(), self.labels.pin_memory())


@dataclass
class SlotDataset(Dataset[SlotBatch | UserError]):
    """Maps a request to its batch, or to what is wrong with its samples.

    Errors are returned, not raised: torch would rebuild one raised in a loader process from its text alone.
    """

    reader: ShardReader
    transform: TrainTransform
    seed: int

    def __getitem__(self, request: SlotRequest) -> SlotBatch | UserError:
        """Read, decode and transform the samples of one slot."""
        try:
            return self.read(request)
        except UserError as error:
            return error

    def read(self, request: SlotRequest) -> SlotBatch:
        """As above, but raise what is wrong.

        Raises:
            DataError: A sample is damaged.
        """
        size = self.transform.image_size
        images = np.empty((len(request.samples), size, size, 3), dtype=np.uint8)
        labels = np.empty(len(request.samples), dtype=np.int64)
        self.reader.prepare(list(request.samples), request)
        for row, sample in enumerate(request.samples):
            image, labels[row] = self.reader.read(sample)
            random = np.random.Generator(np.random.Philox(key=mix(self.seed, request.epoch, sample)))
            images[row] = self.transform.pixels(image, random)
        return SlotBatch(request, self.transform.evaluation.normalise(images), torch.from_numpy(labels))


@dataclass
class _Requests(Sampler[SlotRequest]):
    requests: Iterable[SlotRequest] = field(default_factory=list)

    def __iter__(self) -> Iterator[SlotRequest]:
        return iter(self.requests)


def make_loader(
    dataset: SlotDataset, requests: Iterable[SlotRequest], *, num_workers: int, prefetch_factor: int, pin_memory: bool
) -> DataLoader[SlotBatch | UserError]:
    """Return a loader that gives one SlotBatch per request, in order; iterate it by `read_slots`."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=_Requests(requests),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        collate_fn=_identity,
        pin_memory=pin_memory,
    )


def read_slots(loader: DataLoader[SlotBatch | UserError]) -> Iterator[SlotBatch]:
    """Yield the batches of a loader.

    Raises:
        DataError: A sample is damaged.
    """
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


def evaluation_batches(
    shards_uri: str,
    manifest: ShardManifest,
    split: str,
    transform: EvaluationTransform,
    batch_size: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    data: DataSection | None = None,
    folder: CacheFolder | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (images [B, 3, S, S] float32, labels [B] int64) of a split in index order.

    Over all ranks every sample comes once: rank r takes the batches r, r + ranks, ... `data` and `folder` as in
    `ShardReader`.
    """
    reader = ShardReader(shards_uri, manifest, split, data, folder)
    with reader.read_ahead() as advance:
        for start in range(rank * batch_size, len(reader), ranks * batch_size):
            places = list(range(start, min(start + batch_size, len(reader))))
            reader.prepare(places)
            samples = [reader.read(place) for place in places]
            advance(start)
            images = np.stack([transform.pixels(image) for image, _ in samples])
            yield transform.normalise(images), torch.tensor([label for _, label in samples], dtype=torch.int64)


def _identity(batch: Any) -> Any:
    return batch
