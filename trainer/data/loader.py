"""Whole slots, made by loader processes or in this one."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from contracts.errors import ConfigError, UserError
from contracts.process import end_with_parent
from records.decode import Pixels, UndecodableImage
from records.index import DamagedSample
from trainer.data.order.cursor import SlotRequest
from trainer.data.randomness import generator_of, global_generators_kept, seed_global_generators
from trainer.data.reader import ShardReader
from trainer.data.sockets import shorten_socket_paths
from trainer.supervise.signals import ignore_stop_signals
from trainer.tasks.image_classification.augment.draw import AugmentationPlan, Mix
from trainer.tasks.image_classification.augment.pixel_ops import apply_plan
from trainer.tasks.image_classification.transforms import PixelTransform, TrainTransform

# Keys of the draws that are no sample's, so that they share no stream with one (hash_integers takes any).
_OWN_TRANSFORM, _MIXING = 1, 2


@dataclass(frozen=True)
class Replacement:
    """A bad sample and the sample that was read in its place, by their places in the split."""

    sample: int
    by: int
    reason: str


@dataclass(frozen=True)
class SlotBatch:
    """What the loader yields for a request: bytes, that device.py makes into model input where the model is."""

    request: SlotRequest
    images: torch.Tensor
    """[B, S, S, 3] uint8: a quarter of what float32 would take through a pipe and to a GPU."""
    labels: torch.Tensor
    """[B] int64."""
    plan: AugmentationPlan | None = None
    """Operations that are still to be done on the images."""
    mix: Mix | None = None
    """How the images are mixed with each other, last."""
    replaced: tuple[Replacement, ...] = ()

    def pin_memory(self) -> SlotBatch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


@dataclass
class SlotDataset(Dataset[SlotBatch | UserError]):
    """Maps a request to its batch, or to what is wrong with its samples.

    Errors are returned, not raised: torch would rebuild one raised in a loader process from its text alone.
    """

    reader: ShardReader
    transform: TrainTransform
    seed: int
    replace_bad: bool = False
    """Whether a bad sample is replaced by the next of its class; otherwise it is an error."""

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
            ConfigError: data.transform failed, or returned no image of the right shape.
        """
        transform = self.transform
        size, batch_size = transform.image_size, len(request.samples)
        images = np.empty((batch_size, size, size, 3), dtype=np.uint8)
        labels = np.empty(batch_size, dtype=np.int64)
        steps = transform.augmentation.num_steps
        plan = (
            AugmentationPlan(np.zeros((batch_size, steps), np.int64), np.zeros((batch_size, steps))) if steps else None
        )
        replaced: list[Replacement] = []
        self.reader.prepare(list(request.samples), request)
        # A transform of the user draws from global generators; without one nobody touches them.
        with global_generators_kept() if transform.own else nullcontext():
            for row, (sample, draw) in enumerate(zip(request.samples, request.draws, strict=True)):
                random = generator_of(self.seed, draw, sample) if transform.draws else None
                pixels, labels[row] = self._read_sample(sample, random, replaced)
                if transform.own is not None:
                    seed_global_generators(self.seed, draw, sample, _OWN_TRANSFORM)
                    read = replaced[-1].by if replaced and replaced[-1].sample == sample else sample
                    pixels = self._apply_own(transform.own, pixels, read)
                images[row] = pixels
                if plan is not None and random is not None:
                    plan.operations[row], plan.strengths[row] = transform.augmentation.draw(random)
        tensor = torch.from_numpy(images)
        if plan is not None and not transform.augmentation.on_gpu:
            _augment_one_by_one(tensor, plan)
            plan = None
        mix = None
        if transform.mixing.is_on:
            mix = transform.mixing.draw(
                batch_size, size, generator_of(self.seed, request.step, request.slot, 0, _MIXING)
            )
        return SlotBatch(request, tensor, torch.from_numpy(labels), plan, mix, tuple(replaced))

    def _read_sample(
        self, sample: int, random: np.random.Generator | None, replaced: list[Replacement]
    ) -> tuple[Pixels, int]:
        """Return pixels and label of a sample, or of the first good one of its class behind it.

        The random numbers stay those of the sample that was asked for, so the one that steps in does not come twice
        with the same crop in one epoch.
        """
        place, reasons = sample, []
        state = random.bit_generator.state if random is not None and self.replace_bad else None
        while True:
            try:
                content, label = self.reader.read_bytes(place)
                try:
                    pixels = self.transform.pixels(content, random)
                except UndecodableImage as error:
                    raise self.reader.undecodable(place, error) from None
            except DamagedSample as error:
                # The search goes through the index, all of it for a rare class: not before an error.
                if not self.replace_bad or (place := self.reader.next_of_class(place)) == sample:
                    raise
                reasons.append(error.given)
                if random is not None and state is not None:
                    random.bit_generator.state = state
                continue
            if place != sample:
                replaced.append(Replacement(sample, place, "; ".join(reasons)))
            return pixels, label

    def _apply_own(self, own: PixelTransform, pixels: Pixels, place: int) -> Pixels:
        # Its own copy where Pillow's bytes cannot be written to: whether they can depends on the image.
        own_pixels = np.require(pixels, requirements=["C", "W"])
        try:
            result = own(own_pixels)
        except MemoryError:
            raise
        except Exception as error:  # the user's code: whatever it raises is theirs to mend
            raised = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"data.transform {_name_of(own)} failed on {self.reader.describe(place)}: "
                f"{type(error).__name__}: {error} ({raised.filename}, line {raised.lineno})",
                allowed="a function that maps every image [S, S, 3] uint8 to another",
                todo="correct the function, or shard without this image",
            ) from error
        if not isinstance(result, np.ndarray) or result.shape != pixels.shape or result.dtype != np.uint8:
            found = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
            raise ConfigError(
                f"data.transform {_name_of(own)} returned {found} for an image of uint8 {pixels.shape}: "
                f"{self.reader.describe(place)}",
                allowed="an array of the same shape and type",
                todo="return the changed image as uint8; normalisation comes after it",
            )
        return result


def _name_of(own: PixelTransform) -> str:
    """Return module:callable, as data.transform has it."""
    kind = own if hasattr(own, "__qualname__") else type(own)
    return f"{kind.__module__}:{kind.__qualname__}"


def _augment_one_by_one(images: torch.Tensor, plan: AugmentationPlan) -> None:
    """Apply a plan to images [B, S, S, 3] in place; one at a time, so that an image stays in the processor's cache."""
    for row in range(len(images)):
        one = AugmentationPlan(plan.operations[row : row + 1], plan.strengths[row : row + 1])
        images[row] = apply_plan(images[row].permute(2, 0, 1)[None], one)[0].permute(1, 2, 0)


@dataclass
class _Requests(Sampler[SlotRequest]):
    requests: Iterable[SlotRequest] = field(default_factory=list)

    def __iter__(self) -> Iterator[SlotRequest]:
        return iter(self.requests)


def make_loader(
    dataset: SlotDataset, requests: Iterable[SlotRequest], *, num_workers: int, prefetch_factor: int, pin_memory: bool
) -> DataLoader[SlotBatch | UserError]:
    """Return a loader that gives one SlotBatch per request, in order; iterate it by `read_slots`."""
    if num_workers:
        shorten_socket_paths()
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=_Requests(requests),
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
