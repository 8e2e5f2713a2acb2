"""Tasks on images: `ImageTask`, the input side of all of them, and `ImageClassification`.

Several labels per image are in multilabel.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from records.decode import MAX_PIXELS, decode_rgb
from records.pixels import centre_square
from trainer.model.architecture import build_from_callable, build_from_transformers, is_own, takes_by_name
from trainer.tasks.augmentation import Augmentation, Mixing, apply_operations, mix_images
from trainer.tasks.classification import Classification
from trainer.tasks.image_transforms import TrainTransform, apply_own, load_transform, normalise
from trainer.tasks.shard_checks import normalisation
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from contracts.config import ModelSection
    from trainer.tasks.task import Batch, Mode, Prepared, Sample, TaskContext

CHANNELS = 3


class ImageTask(Task):
    """Images [B, 3, S, S] to logits [B, classes]: pixels, augmentation and the network.

    Args:
        context: The configuration's sections data and model, and the shards' classes and pixels.
        compare: Comparison of the logits by the export's gates: of values alone, or of classes too.

    Raises:
        ConfigError: data.transform cannot be imported, or there is no mean and std.
    """

    no_label: Any
    """Value of the field `label` for an example."""

    def __init__(self, context: TaskContext, *, compare: Literal["values", "classes"]) -> None:
        data, shards = context.config.data, context.shards
        self.classes = shards.classes
        self._model, self._size, self._own_name = context.config.model, data.image_size, data.transform
        mean, std = normalisation(data, shards)
        self._mean, self._std = (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])
        # Adopted shards have images that were never checked.
        max_pixels = shards.prepared.max_pixels if shards.prepared is not None else MAX_PIXELS
        self.train_transform = TrainTransform(self._size, data.crop, data.horizontal_flip, max_pixels)
        self._own = load_transform(data.transform) if data.transform else None
        self._augmentation = Augmentation.of(data)
        self._mixing = Mixing(data.augment.mixup_alpha, data.augment.cutmix_alpha)
        logits = OutputSpec(dtype="float32", shape=["batch", max(1, len(self.classes))], compare=compare)
        images = TensorSpec(dtype="float32", shape=["batch", CHANNELS, self._size, self._size])
        self.signature = Signature(inputs={"images": images}, outputs={"logits": logits})

    @abstractmethod
    def stack_labels(self, labels: Sequence[Any]) -> torch.Tensor:
        """Return values of the field `label` as a tensor [B, ...]."""

    def build_model(self) -> nn.Module:
        """Return the network of section `model`."""
        return build_network(self._model, num_classes=len(self.classes), image_size=self._size)

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return `images` [S, S, 3] uint8, and `label` where the sample has one.

        Random numbers are drawn in this order: box, flip, operations.

        Raises:
            UndecodableImage: The image's file is damaged or no image.
            RefusedSample: data.transform failed on it.
        """
        if mode.training:
            transform = self.train_transform
            pixels = transform.decode(sample["image"], mode.random if transform.is_random else None)
            if self._own is not None:
                pixels = apply_own(self._own, self._own_name, pixels)
            if self._augmentation is not None:
                operations = self._augmentation.draw(mode.random)
                pixels = np.asarray(apply_operations(Image.fromarray(pixels), operations))
        else:
            image = decode_rgb(sample["image"], max_pixels=self.train_transform.max_pixels)
            pixels = centre_square(image, self._size)
        prepared = {"images": pixels}
        return {**prepared, "label": sample["label"]} if "label" in sample else prepared

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `images` [B, S, S, 3] uint8, `label` [B, ...], and in training `mix` (`Mixing.draw`).

        Bytes take a quarter of the memory of float32.
        """
        batch: Batch = {"images": torch.from_numpy(np.stack([sample["images"] for sample in samples]))}
        if "label" in samples[0]:
            batch["label"] = self.stack_labels([sample["label"] for sample in samples])
        if mode.training and self._mixing.is_on:
            batch["mix"] = self._mixing.draw(len(samples), self._size, mode.random)
        return batch

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Return `images` [B, 3, S, S] float32, normalised and mixed, `label`, and where mixed `shares` [B].

        A share is the weight of the label in the loss; the partner's label (reverse order) has the remaining weight.
        """
        finished = {**batch, "images": normalise(batch["images"], self._mean, self._std, mode.memory_format)}
        mix = finished.pop("mix", None)
        if mix is not None:
            finished["images"] = mix_images(finished["images"], mix["shares"], mix["boxes"])
            finished["shares"] = mix["shares"]
        return finished

    def example(self, size: int) -> Batch:
        """Return black images."""
        images = torch.zeros(size, CHANNELS, self._size, self._size)
        return {"images": images, "label": self.stack_labels([self.no_label] * size)}

    def first_samples(self, batch: Batch) -> torch.Tensor:
        """Return the network's input images, augmented and mixed: [N, 3, S, S] uint8."""
        mean, std = (
            torch.tensor(values, device=batch["images"].device).view(1, CHANNELS, 1, 1)
            for values in (self._mean, self._std)
        )
        images: torch.Tensor = batch["images"].float() * std + mean
        return images.mul_(255).round_().clamp_(0, 255).byte()

    def document(self) -> dict[str, Any]:
        """Return size and normalisation of the images."""
        return {"image_size": self._size, "mean": list(self._mean), "std": list(self._std)}


class ImageClassification(Classification, ImageTask):
    """Images to logits of classes, of which each image has one.

    Args:
        context: The configuration's sections data, model and train, and the shards' classes and pixels.
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Raises:
        ConfigError: An argument is none of these, data.transform cannot be imported, or there is no mean and std.
    """

    fields: Mapping[str, str] = {"image": "image", "label": "class"}
    no_label = 0

    def __init__(self, context: TaskContext, *, class_weights: str | Mapping[str, float] = "") -> None:
        ImageTask.__init__(self, context, compare="classes")
        Classification.__init__(self, context, class_weights)

    def stack_labels(self, labels: Sequence[int]) -> torch.Tensor:
        """Return [B] int64."""
        return torch.tensor(labels, dtype=torch.int64)


def build_network(section: ModelSection, *, num_classes: int, image_size: int) -> nn.Module:
    """Build the network of section `model` with random weights from torch's generator, without a forward pass.

    It is an architecture of transformers, or `module:callable`. A lazy module in it has no tensors yet.

    Args:
        section: The model section of the configuration.
        num_classes: Width of the last layer.
        image_size: Side of the input in pixels, for architectures that depend on it.

    Raises:
        ModelError: The architecture is unknown, or does not take these arguments.
    """
    if is_own(section):
        allowed = "a torch.nn.Module that maps images [B, 3, H, W] to logits [B, num_classes]"
        model = build_from_callable(section, allowed=allowed, num_classes=num_classes)
        return _images_to_logits(model) if takes_by_name(model, "pixel_values") else model
    from transformers import AutoModelForImageClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    def choose(defaults: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        settings = {"num_labels": num_classes}
        if hasattr(defaults, "image_size") and "image_size" not in arguments:
            settings["image_size"] = image_size
        return settings

    network = build_from_transformers(
        section,
        AutoModelForImageClassification,
        known=KNOWN,
        shown=sorted(KNOWN)[:12],
        head="an image-classification head",
        choose=choose,
    )
    return _images_to_logits(network)


def _images_to_logits(network: nn.Module) -> nn.Module:
    """Change a transformers network's signature to images -> logits; its tensors keep their names."""
    # A bound method is copied with the network.
    network.forward = MethodType(_logits_of, network)
    return network


def _logits_of(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Map images [B, 3, H, W] float32, normalised, to logits [B, classes]."""
    output: Any = type(network).forward(network, pixel_values=images)
    # A user's network may return logits directly.
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits
