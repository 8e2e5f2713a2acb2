"""A task whose samples are an image and its label: everything but what the label means.

Pixels, augmentation, the network and its head are the same whether an image has one class or several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.model.architecture import is_own
from trainer.tasks.classes.head import Head, find_head
from trainer.tasks.classes.losses import PerSample
from trainer.tasks.images.augment.draw import AugmentationPlan, Mix
from trainer.tasks.images.augment.pixel_ops import apply_plan, mix_images
from trainer.tasks.images.network import build_network
from trainer.tasks.images.transforms import make_transforms, normalise
from trainer.tasks.load import describe_failure
from trainer.tasks.protocol import Batch, Loss, Mode, Prepared, RefusedSample, Sample, TaskContext

if TYPE_CHECKING:
    from records.decode import Pixels
    from trainer.tasks.images.transforms import PixelTransform

CHANNELS = 3


class ImageTask(ABC):
    """Images to logits [B, classes].

    Args:
        context: The configuration's sections data, model and train, and the shards' classes and pixels.
        compare: What the export's gates compare of the logits, besides the numbers.

    Attributes:
        classes: Names of the classes, by place of a label.
        transform: What training makes of an image file.
        evaluation_transform: What evaluation makes of it.

    Raises:
        ConfigError: data.transform cannot be imported, or there is no mean and std.
    """

    def __init__(self, context: TaskContext, *, compare: Literal["values", "classes"]) -> None:
        self._config, self._compare = context.config, compare
        self.classes = context.shards.classes
        self.transform, self.evaluation_transform = make_transforms(context.config.data, context.shards)
        self._size = context.config.data.image_size

    @abstractmethod
    def _stack_labels(self, labels: Sequence[Any]) -> torch.Tensor:
        """Return the labels of a batch as a tensor [B, ...].

        Args:
            labels: As the field `label` has them.
        """

    @abstractmethod
    def _empty_label(self) -> Any:
        """Return a label for an example, as the field has it."""

    @abstractmethod
    def _loss_of_each(self, mode: Mode) -> PerSample:
        """Return the function that maps logits [B, classes] and labels [B, ...] to losses [B]."""

    @property
    def uses_global_generators(self) -> bool:
        """Whether `prepare` may draw from global generators: in a transform of the user's."""
        return self.transform.own is not None

    @property
    def signature(self) -> Signature:
        """`images` [batch, 3, S, S] float32, normalised, to `logits` [batch, classes] float32."""
        classes = max(1, len(self.classes))
        return Signature(
            inputs={"images": TensorSpec(dtype="float32", shape=["batch", CHANNELS, self._size, self._size])},
            outputs={"logits": OutputSpec(dtype="float32", shape=["batch", classes], compare=self._compare)},
        )

    # --- the network --------------------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        """Return the network of section `model`."""
        return build_network(self._config.model, num_classes=len(self.classes), image_size=self._size)

    def head(self) -> Head:
        """Return which tensors are the classifier's head, whose rows belong to classes."""

        def build(num_classes: int) -> nn.Module:
            return build_network(self._config.model, num_classes=num_classes, image_size=self._size)

        def example() -> tuple[torch.Tensor]:
            return (torch.zeros(2, CHANNELS, self._size, self._size),)

        tensors = find_head(build, len(self.classes), example=example, on_meta=not is_own(self._config.model))
        return Head(tensors, tuple(self.classes))

    # --- from a sample to a batch -------------------------------------------------------------------------------------

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return `images` [S, S, 3] uint8 and the label, and what is drawn to change the image on the device.

        Raises:
            UndecodableImage: The image's file is none that can be used.
            RefusedSample: data.transform failed on it.
        """
        if not mode.training:
            return {"images": self.evaluation_transform.decode(sample["image"]), "label": sample["label"]}
        transform = self.transform
        # Random numbers in this order: box, flip, operations.
        pixels = transform.pixels(sample["image"], mode.random if transform.draws else None)
        if transform.own is not None:
            pixels = _apply_own(transform.own, pixels)
        prepared = {"images": pixels, "label": sample["label"]}
        if transform.augmentation.is_on:
            prepared["plan"] = transform.augmentation.draw(mode.random)
        return prepared

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `images` [B, S, S, 3] uint8 and `label` [B, ...]; bytes take a quarter of what float32 would.

        `mix` says how images are mixed with each other.
        """
        images = torch.from_numpy(np.stack([sample["images"] for sample in samples]))
        batch: Batch = {"images": images, "label": self._stack_labels([sample["label"] for sample in samples])}
        if not mode.training:
            return batch
        transform = self.transform
        if transform.augmentation.is_on:
            drawn = [sample["plan"] for sample in samples]
            plan = AugmentationPlan(
                np.array([one for one, _ in drawn]), np.array([strengths for _, strengths in drawn])
            )
            _augment_one_by_one(images, plan)
        if transform.mixing.is_on:
            batch["mix"] = transform.mixing.draw(len(samples), self._size, mode.random)
        return batch

    # --- on the device ------------------------------------------------------------------------------------------------

    def example(self, size: int) -> Batch:
        """Return black images [B, 3, S, S] float32 with a label that says little."""
        images = torch.zeros(size, CHANNELS, self._size, self._size)
        return {"images": images, "label": self._stack_labels([self._empty_label()] * size)}

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Return `images` [B, 3, S, S] float32, changed, normalised and mixed, `label`, and where mixed `shares` [B].

        A share is that of the label in the loss; the rest is that of the label in reverse order.
        """
        images, mean, std = batch["images"], self.evaluation_transform.mean, self.evaluation_transform.std
        mix: Mix | None = batch.get("mix")
        found = {"images": normalise(images, mean, std, mode.memory_format), "label": batch["label"]}
        if mix is not None:
            found["images"] = mix_images(found["images"], mix)
            found["shares"] = torch.from_numpy(mix.shares).to(images.device, non_blocking=True)
        return found

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the loss in nats, summed over the batch, and its samples."""
        logits, label, shares = outputs.float(), batch["label"], batch.get("shares")
        of_each = self._loss_of_each(mode)
        found = of_each(logits, label)
        if shares is not None:
            found = shares * found + (1 - shares) * of_each(logits, label.flip(0))
        return found.sum(), len(label)

    # --- what only tasks of images have -------------------------------------------------------------------------------

    def first_slot(self, batch: Batch) -> torch.Tensor:
        """Return the images of a batch as the network got them, augmented and mixed: [N, 3, S, S] uint8."""
        transform = self.evaluation_transform
        mean, std = (torch.tensor(values).view(1, CHANNELS, 1, 1) for values in (transform.mean, transform.std))
        images: torch.Tensor = batch["images"].float() * std + mean
        return images.mul_(255).round_().clamp_(0, 255).byte()

    def document(self) -> dict[str, object]:
        """Return what a checkpoint says of the pixels that the network was trained on."""
        return self.evaluation_transform.document()


def _apply_own(own: PixelTransform, pixels: Pixels) -> Pixels:
    # Its own copy where Pillow's bytes cannot be written to: whether they can depends on the image.
    own_pixels = np.require(pixels, requirements=["C", "W"])
    try:
        result = own(own_pixels)
    except MemoryError:
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise RefusedSample(
            f"data.transform {_name_of(own)} failed: {describe_failure(error)}",
            allowed="a function that maps every image [S, S, 3] uint8 to another",
            todo="correct the function, or shard without this image",
        ) from error
    if not isinstance(result, np.ndarray) or result.shape != pixels.shape or result.dtype != np.uint8:
        found = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
        raise RefusedSample(
            f"data.transform {_name_of(own)} returned {found} for an image of uint8 {pixels.shape}",
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
