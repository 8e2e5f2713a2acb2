"""The network: from the model section to a torch module that maps images to logits, and a hash of its parameters.

Architectures come from transformers' configurations (weights are random: nothing is downloaded) or from any
`module:callable` that returns a module.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from contracts.config import ModelSection
from contracts.errors import ModelError

# What a network raises, while it is built or run, when its arguments do not fit.
_MISFITS = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    NameError,
    SyntaxError,
)


class ImageClassifier(nn.Module):
    """Gives a transformers model the plain signature images -> logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images [B, 3, H, W] float32, normalised, to logits [B, classes]."""
        logits: torch.Tensor = self.network(pixel_values=images).logits
        return logits


def build_model(section: ModelSection, *, num_classes: int, image_size: int) -> nn.Module:
    """Build the network with random weights from torch's current seed, and run it once on zeros.

    Args:
        section: The model section of the configuration.
        num_classes: Width of the last layer.
        image_size: Side of the input in pixels, for architectures that depend on it.

    Raises:
        ModelError: The architecture is unknown, does not take these arguments, or does not map images to logits.
    """
    if ":" in section.architecture:
        model = _build_from_callable(section, num_classes)
    else:
        model = _build_from_transformers(section, num_classes, image_size)
    _try_out(model, section, num_classes=num_classes, image_size=image_size)
    return model


def find_unused(model: nn.Module, images: torch.Tensor) -> list[str]:
    """Return the names of the parameters that get no gradient, though they ask for one.

    A parameter counts as used when it gets one in training or in evaluation mode: layers that are dropped at random
    are used. Parameters, buffers and gradients are as before afterwards.

    Args:
        model: A model that no rank has wrapped yet.
        images: [B, 3, H, W] float32, on the model's device.

    Raises:
        ModelError: The model cannot be trained: no parameter gets a gradient.
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    was_training = model.training
    for training in (True, False):
        model.train(training)
        logits = model(images)
        if not isinstance(logits, torch.Tensor) or not logits.requires_grad:
            raise ModelError(
                f"the model cannot be trained: in {'training' if training else 'evaluation'} mode it returns "
                f"{_describe(logits)} without gradient",
                allowed="a torch.nn.Module that maps images [B, 3, H, W] to logits [B, num_classes] in both modes",
                todo="correct model.architecture or model.arguments",
            )
        (logits.sum() * 0).backward()  # type: ignore[no-untyped-call]
    unused = [name for name, tensor in model.named_parameters() if tensor.requires_grad and tensor.grad is None]
    model.train(was_training)
    model.load_state_dict(state)
    model.zero_grad(set_to_none=True)
    return unused


def find_single_sample_fault(model: nn.Module, image: torch.Tensor) -> str | None:
    """Return why the model cannot train on one sample alone (BatchNorm at a spatial size of 1), or None.

    Parameters and buffers are as before afterwards.

    Args:
        model: A model that trains on more samples.
        image: [1, 3, H, W] float32, on the model's device.
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    was_training = model.training
    model.train()
    try:
        with torch.no_grad():
            model(image)
    except ValueError as error:
        return str(error)
    finally:
        model.train(was_training)
        model.load_state_dict(state)
    return None


def parameters_sha256(state: dict[str, torch.Tensor]) -> str:
    """Return the hash over names, types, shapes and bytes of a state dict, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        # A view as bytes works for every dtype; numpy knows no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
        network = AutoModelForImageClassification.from_config(config)  # type: ignore[no-untyped-call]
    except (*_MISFITS, StrictDataclassError) as error:
        raise _refused(section, error) from error
    return ImageClassifier(network)


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


def _build_from_callable(section: ModelSection, num_classes: int) -> nn.Module:
    module_name, _, name = section.architecture.partition(":")
    # Stages run with a safe path (components/launch.py); last, so that nothing of ours is hidden.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        builder = getattr(importlib.import_module(module_name), name)
    except _MISFITS as error:
        raise ModelError(
            f"model.architecture {section.architecture!r}: {error}",
            allowed="module:callable, importable in this environment",
            todo="install the package that holds it, or correct the name",
        ) from error
    try:
        model = builder(num_classes=num_classes, **section.arguments)
    except _MISFITS as error:
        raise _refused(section, error) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{section.architecture} returned a {type(model).__name__}",
            allowed="a torch.nn.Module that maps images [B, 3, H, W] to logits [B, num_classes]",
            todo="return the module itself",
        )
    return model


def _try_out(model: nn.Module, section: ModelSection, *, num_classes: int, image_size: int) -> None:
    """Map two zero images to logits in evaluation mode; buffers and torch's random state are as before afterwards."""
    was_training = model.training
    # A lazy module has no tensors yet: this call makes them, from the seed.
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model(torch.zeros(2, 3, image_size, image_size, device=device))
    except _MISFITS as error:
        raise ModelError(
            f"{section.architecture!r} with model.arguments {section.arguments} cannot take images of {image_size} "
            f"pixels: {error}",
            allowed=f"a model that maps images [B, 3, {image_size}, {image_size}] to logits [B, {num_classes}]",
            todo="correct model.arguments or data.image_size, or choose another model.architecture",
        ) from error
    model.train(was_training)
    for buffer, before in buffers:
        buffer.copy_(before)
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, num_classes) or not logits.is_floating_point():
        raise ModelError(
            f"{section.architecture!r} with model.arguments {section.arguments} returns {_describe(logits)} for two "
            "images",
            allowed=f"logits: a floating-point tensor of shape (2, {num_classes})",
            todo="correct model.arguments, or choose another model.architecture",
        )


def _describe(output: object) -> str:
    if isinstance(output, torch.Tensor):
        return f"a {output.dtype} tensor of shape {tuple(output.shape)}"
    return "nothing" if output is None else f"a {type(output).__name__}"


def _refused(section: ModelSection, error: Exception) -> ModelError:
    return ModelError(
        f"{section.architecture!r} with model.arguments {section.arguments} cannot be built: {error}",
        allowed="arguments that the architecture takes",
        todo="correct model.arguments",
    )
