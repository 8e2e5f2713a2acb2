"""The network: from the model section to a torch module that maps images to logits, and a hash of its parameters.

Architectures come from transformers' configurations (weights are random: nothing is downloaded) or from any
`module:callable` that returns a module.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.trial import buffers_restored, random_state_kept
from trainer.model.user_callable import load_callable

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
# Training passes after the first of a network that draws random numbers: that a layer is left out once in ten passes is
# seen in 17 with 83 %, of four such layers with 99.9 %.
_MORE_PASSES = 16


@dataclass(frozen=True)
class GradientUse:
    """Parameters that ask for a gradient and do not always get one, by name."""

    never: list[str]
    """In no mode."""
    evaluation_only: list[str]
    """In evaluation mode, and in no pass in training mode."""
    at_random: list[str]
    """In some passes in training mode: of layers that are left out at random."""


def build_model(
    section: ModelSection,
    *,
    num_classes: int,
    image_size: int,
    place: Callable[[nn.Module], torch.device] | None = None,
) -> nn.Module:
    """Build the network with random weights from torch's current seed, and run it once on zeros.

    Args:
        section: The model section of the configuration.
        num_classes: Width of the last layer.
        image_size: Side of the input in pixels, for architectures that depend on it.
        place: Says where the network is tried out and left; None: where it was built. A network with lazy modules is
            tried out where it was built, since that call makes their weights, from the seed.

    Raises:
        ModelError: The architecture is unknown, does not take these arguments, or does not map images to logits.
    """
    model = model_builder(section, num_classes=num_classes, image_size=image_size)()
    complete_model(model, section, num_classes=num_classes, image_size=image_size)
    if place is not None:
        model = model.to(place(model))
    _try_out(model, section, num_classes=num_classes, image_size=image_size)
    return model


def model_builder(section: ModelSection, *, num_classes: int, image_size: int) -> Callable[[], nn.Module]:
    """Import what the network is made of; return what builds it, without a forward pass.

    Arguments and errors as for `build_model`, when it is called too. A lazy module in the network has no tensors yet.
    """
    if ":" in section.architecture:
        builder = load_callable("model.architecture", section.architecture, ModelError)
        return partial(_build_from_callable, section, builder, num_classes)
    return partial(_build_from_transformers, section, num_classes, image_size)


def complete_model(model: nn.Module, section: ModelSection, *, num_classes: int, image_size: int) -> None:
    """Have lazy modules make their tensors, by a forward pass where the others are. Arguments as for `build_model`."""
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        _try_out(model, section, num_classes=num_classes, image_size=image_size)


def find_gradient_use(model: nn.Module, images: torch.Tensor) -> GradientUse:
    """Return the parameters that ask for a gradient and do not get one in each training pass.

    Parameters, buffers and gradients are as before afterwards.

    Args:
        model: A model that no rank has wrapped yet.
        images: [B, 3, H, W] float32, on the model's device.

    Raises:
        ModelError: The model cannot be trained: no parameter gets a gradient.
    """
    was_training = model.training
    asking = [name for name, tensor in model.named_parameters() if tensor.requires_grad]
    with buffers_restored(model):
        before = _random_states()
        trained = [_reached_by_gradient(model, images, training=True)]
        if _random_states() != before:
            # It may leave out layers at random (stochastic depth), and have left out none this time.
            trained += [_reached_by_gradient(model, images, training=True) for _ in range(_MORE_PASSES)]
        evaluated = _reached_by_gradient(model, images, training=False)
    model.train(was_training)
    sometimes, always = set.union(*trained), set.intersection(*trained)
    return GradientUse(
        never=[name for name in asking if name not in sometimes | evaluated],
        evaluation_only=[name for name in asking if name in evaluated - sometimes],
        at_random=[name for name in asking if name in sometimes - always],
    )


def _random_states() -> tuple[object, ...]:
    """Return something that differs once a random number was drawn from any global generator."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += [state.cpu() for state in torch.cuda.get_rng_state_all()]
    return random.getstate(), _numpy_state(), *(state.numpy().tobytes() for state in states)


def _numpy_state() -> object:
    kind, keys, *rest = np.random.get_state()
    return kind, np.asarray(keys).tobytes(), *rest


def _reached_by_gradient(model: nn.Module, images: torch.Tensor, *, training: bool) -> set[str]:
    """Return the names of the parameters that get a gradient in a pass; no gradient is kept."""
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
    names = {name for name, tensor in model.named_parameters() if tensor.grad is not None}
    model.zero_grad(set_to_none=True)
    return names


def find_single_sample_fault(model: nn.Module, image: torch.Tensor) -> str | None:
    """Return why the model cannot train on one sample alone (BatchNorm at a spatial size of 1), or None.

    Parameters and buffers are as before afterwards.

    Args:
        model: A model that trains on more samples.
        image: [1, 3, H, W] float32, on the model's device.
    """
    was_training = model.training
    model.train()
    try:
        with torch.no_grad(), buffers_restored(model):
            model(image)
    except ValueError as error:
        return str(error)
    finally:
        model.train(was_training)
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
        network: nn.Module = AutoModelForImageClassification.from_config(config)  # type: ignore[no-untyped-call]
    except (*_MISFITS, StrictDataclassError) as error:
        raise _refused(section, error) from error
    return _images_to_logits(network)


def is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is one of transformers' networks, which saves and loads folders by itself."""
    if "transformers" not in sys.modules:
        return False
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


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
    except _MISFITS as error:
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


def _try_out(model: nn.Module, section: ModelSection, *, num_classes: int, image_size: int) -> None:
    """Map two zero images to logits in evaluation mode; buffers and torch's random state are as before afterwards."""
    was_training = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad(), buffers_restored(model), random_state_kept(device):
            logits = model(torch.zeros(2, 3, image_size, image_size, device=device))
    except torch.OutOfMemoryError:
        # A misfit of the machine, not of the network.
        raise
    except _MISFITS as error:
        raise ModelError(
            f"{section.architecture!r} with model.arguments {section.arguments} cannot take images of {image_size} "
            f"pixels: {error}",
            allowed=f"a model that maps images [B, 3, {image_size}, {image_size}] to logits [B, {num_classes}]",
            todo="correct model.arguments or data.image_size, or choose another model.architecture",
        ) from error
    model.train(was_training)
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
