"""From shards to model input: decode, crop, resize, normalise, in the order that trainer/cursor.py gives.

A sample's pixels depend on (seed, epoch, sample) only: not on rank, loader process, attempt or its neighbours.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError, UserError
from records.decode import UndecodableImage, decode_rgb
from records.index import key_of, open_index, read_payload
from trainer.cursor import SlotRequest, mix
from trainer.shards import normalisation

Pixels = npt.NDArray[np.uint8]

# Area and aspect ratio of a random resized crop, as in Szegedy et al., "Going deeper with convolutions" (2014).
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10
# Shards held open by one reader: far below the usual limit of 1,024 files a process, and opening one costs little.
MAX_OPEN_SHARDS = 64


@dataclass(frozen=True)
class EvaluationTransform:
    """Resize the shorter side to `image_size`, take the centre, scale to [0, 1], normalise."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def pixels(self, image: Pixels) -> Pixels:
        """Map an image [H, W, 3] to [image_size, image_size, 3]."""
        height, width = image.shape[:2]
        side = min(height, width)
        if (height, width) == (self.image_size, self.image_size):
            return image
        top, left = (height - side) // 2, (width - side) // 2
        return resize(image, top, left, side, side, self.image_size)

    def normalise(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32, contiguous."""
        mean = np.asarray(self.mean, dtype=np.float32)
        std = np.asarray(self.std, dtype=np.float32)
        scaled = (images.astype(np.float32) / np.float32(255) - mean) / std
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))


@dataclass(frozen=True)
class TrainTransform:
    """What training images go through before they are normalised."""

    image_size: int
    crop: str
    horizontal_flip: bool
    evaluation: EvaluationTransform

    def pixels(self, image: Pixels, random: np.random.Generator) -> Pixels:
        """Map an image [H, W, 3] to [image_size, image_size, 3]."""
        if self.crop == "random_resized":
            result = resize(image, *_random_box(image.shape[0], image.shape[1], random), self.image_size)
        else:
            result = self.evaluation.pixels(image)
        if self.horizontal_flip and random.random() < 0.5:
            result = result[:, ::-1]
        return result


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


class ShardReader:
    """Reads samples of one split by their place, from local shards of either format."""

    def __init__(self, shards_uri: str, manifest: ShardManifest, split: str) -> None:
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        folder = storage.local_path(shards_uri)
        entry = manifest.splits[split]
        self._paths = [storage.local_path(shard.uri(shards_uri)) for shard in manifest.shards]
        self._index = open_index(folder / manifest.index.name)[entry.first : entry.first + entry.samples]

    def __len__(self) -> int:
        return len(self._index)

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to a spawned process; it opens its own.
        return {**self.__dict__, "_descriptors": OrderedDict()}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, place: int) -> tuple[Pixels, int]:
        """Return the image [H, W, 3] and the label at `place`.

        Raises:
            DataError: The bytes are damaged, or are no image.
        """
        record = self._index[place]
        number = int(record["shard"])
        content = read_payload(self._descriptor(number), record)
        try:
            return decode_rgb(content), int(record["label"])
        except UndecodableImage as error:
            raise DataError(
                f"{self._paths[number].name}: sample {key_of(record)} cannot be decoded: {error}",
                allowed="images that were decoded when they were sharded",
                todo="shard again with --fresh",
            ) from None

    def _descriptor(self, number: int) -> int:
        """Return an open shard; the least recently used one is closed when there are many."""
        if number in self._descriptors:
            self._descriptors.move_to_end(number)
            return self._descriptors[number]
        if len(self._descriptors) >= MAX_OPEN_SHARDS:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[number] = self._open(number)
        return self._descriptors[number]

    def _open(self, number: int) -> int:
        try:
            return os.open(self._paths[number], os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"shard {self._paths[number].name} cannot be read ({error.strerror})",
                allowed="shards as the shard stage left them",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            ) from None


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


def make_transforms(data: DataSection, manifest: ShardManifest) -> tuple[TrainTransform, EvaluationTransform]:
    """Return the transforms of training and evaluation; mean and std are the configuration's, else the manifest's."""
    mean, std = normalisation(data, manifest)
    evaluation = EvaluationTransform(data.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    return TrainTransform(data.image_size, data.crop, data.horizontal_flip, evaluation), evaluation


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
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (images [B, 3, S, S] float32, labels [B] int64) of a split in index order.

    Over all ranks every sample comes once: rank r takes the batches r, r + ranks, ...
    """
    reader = ShardReader(shards_uri, manifest, split)
    for start in range(rank * batch_size, len(reader), ranks * batch_size):
        samples = [reader.read(place) for place in range(start, min(start + batch_size, len(reader)))]
        images = np.stack([transform.pixels(image) for image, _ in samples])
        yield transform.normalise(images), torch.tensor([label for _, label in samples], dtype=torch.int64)


def resize(image: Pixels, top: int, left: int, height: int, width: int, size: int) -> Pixels:
    """Cut a box out of an image [H, W, 3] and resize it to [size, size, 3] (Pillow, bilinear with antialiasing)."""
    box = (left, top, left + width, top + height)
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=box))


def _random_box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(CROP_TRIES):
        area = height * width * random.uniform(*CROP_AREA)
        aspect = np.exp(random.uniform(np.log(CROP_ASPECT[0]), np.log(CROP_ASPECT[1])))
        box_width, box_height = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = int(random.integers(height - box_height + 1)), int(random.integers(width - box_width + 1))
            return top, left, box_height, box_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def _identity(batch: Any) -> Any:
    return batch
