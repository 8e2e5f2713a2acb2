"""The network of image classification: images to logits, from the section `model` of the configuration.

Architectures come from transformers' configurations (weights are random: nothing is downloaded) or from any
`module:callable` that returns a module.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.build import MISFITS, is_of_transformers
from trainer.model.user_callable import load_callable


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
    if ":" in section.architecture:
        builder = load_callable("model.architecture", section.architecture, ModelError)
        return _build_from_callable(section, builder, num_classes)
    return _build_from_transformers(section, num_classes, image_size)


def _build_from_transformers(section: ModelSection, num_classes: int, image_size: int) -> nn.Module:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    known = sorted(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    if section.architecture not in known:
        close = difflib.get_close_matches(section.architecture, known, n=1)
        raise ModelError(
            f"model.architecture {section.architecture!r} is unknown",
            allowed=f"a model type of transformers with an image-classification head ({', '.join(known[:12])}, ... "
            f"{len(known)} in all), or module:callable",
            todo=f"did you mean {close[0]}?" if close else "choose one of them",
        )
    try:
        settings = _check_arguments(section, AutoConfig.for_model(section.architecture))
        if hasattr(AutoConfig.for_model(section.architecture), "image_size"):
            settings.setdefault("image_size", image_size)
        config = AutoConfig.for_model(section.architecture, **settings, num_labels=num_classes)
        network: nn.Module = AutoModelForImageClassification.from_config(config)  # type: ignore[no-untyped-call]
    except (*MISFITS, StrictDataclassError) as error:
        raise _refused(section, error) from error
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


def _check_arguments(section: ModelSection, defaults: Any) -> dict[str, Any]:
    """Refuse names that the configuration does not have: transformers would take them without a word."""
    known = sorted(name for name in defaults.to_dict() if not name.startswith("_"))
    for name in section.arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ModelError(
                f"model.arguments.{name} is no field of {section.architecture}'s configuration",
                allowed=", ".join(known),
                todo=f"did you mean {close[0]}?" if close else "remove it",
            )
    return dict(section.arguments)


def _build_from_callable(section: ModelSection, builder: Callable[..., object], num_classes: int) -> nn.Module:
    try:
        model = builder(num_classes=num_classes, **section.arguments)
    except MISFITS as error:
        raise _refused(section, error) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{section.architecture} returned a {type(model).__name__}",
            allowed="a torch.nn.Module that maps images [B, 3, H, W] to logits [B, num_classes]",
            todo="return the module itself",
        )
    if is_of_transformers(model) and "pixel_values" in inspect.signature(type(model).forward).parameters:
        return _images_to_logits(model)
    return model


def _refused(section: ModelSection, error: Exception) -> ModelError:
    return ModelError(
        f"{section.architecture!r} with model.arguments {section.arguments} cannot be built: {error}",
        allowed="arguments that the architecture takes",
        todo="correct model.arguments",
    )
