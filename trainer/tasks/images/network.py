"""The network of image classification: images to logits, from the section `model` of the configuration.

Architectures come from transformers' configurations (weights are random: nothing is downloaded) or from any
`module:callable` that returns a module.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from contracts.config import ModelSection
from trainer.model.architecture import build_from_callable, build_from_transformers, is_own, takes_by_name


def build_network(section: ModelSection, *, num_classes: int, image_size: int) -> nn.Module:
    """Build the network with random weights from torch's current seed, without a forward pass.

    A lazy module in the network has no tensors yet.

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
    """Give a transformers network the plain signature images -> logits; its tensors keep their names."""
    # A bound method: a deep copy of the network has one of its own.
    network.forward = MethodType(_logits_of, network)
    return network


def _logits_of(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Map images [B, 3, H, W] float32, normalised, to logits [B, classes]."""
    output: Any = type(network).forward(network, pixel_values=images)
    # One of a user's own may return them as they are.
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits
