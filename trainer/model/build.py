"""Build the network of a task, run it on the example batch, and hash its parameters."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from contracts.artifacts.signature import BATCH, Signature
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from trainer.model.signature import (
    Inputs,
    check_example,
    describe,
    find_misfit,
    name_outputs,
    resize_inputs,
)
from trainer.model.trial import buffers_restored, first_algorithms, random_state_kept
from trainer.tasks.loading import describe_failure, network_name
from trainer.tasks.task import Outputs, Task

# Errors that are not caused by the network.
_NOT_OF_NETWORK = (UserError, MemoryError, torch.OutOfMemoryError)


def build_model(task: Task, config: RunConfig, place: Callable[[nn.Module], torch.device] | None = None) -> nn.Module:
    """Build the network of a task with random weights from torch's current seed, and run it once on its example batch.

    `place` returns the device to move it to. Lazy modules are initialised before, so their weights follow the seed.

    Raises:
        ModelError: It cannot be built, or the example or the outputs do not match the task's signature.
    """
    name, inputs, names = network_name(config, arguments=True), example_inputs(task, 2), tuple(task.signature.inputs)
    check_example(inputs, task.signature, any_float=True)
    model = construct_model(task, config)
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        # A forward pass initialises lazy modules.
        try_out(model, inputs, name=name, input_names=names)
    if place is not None:
        model = model.to(place(model))
    outputs = try_out(model, inputs, name=name, input_names=names)
    if mismatch := find_output_mismatch(outputs, task.signature, {BATCH: 2}):
        raise ModelError(
            f"{name} for a batch of two samples: {mismatch}",
            allowed="outputs as in the task's signature",
            todo="correct build_model or signature of the task"
            if config.task.is_own
            else "correct model.arguments, or choose another model.architecture",
        )
    return model


def construct_model(task: Task, config: RunConfig) -> nn.Module:
    """Return the network of a task without a forward pass: lazy modules have no tensors yet.

    Raises:
        ModelError: It cannot be built.
    """
    try:
        model = task.build_model()
    except _NOT_OF_NETWORK:
        raise
    except Exception as error:  # user code may raise anything
        raise ModelError(
            f"{network_name(config, arguments=True)} cannot be built: {type(error).__name__}: {error}",
            allowed="a network that can be built of its arguments",
            todo="correct build_model, or task.arguments" if config.task.is_own else "correct model.arguments",
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{network_name(config)}: build_model returned a {type(model).__name__}",
            allowed="a torch.nn.Module",
            todo="return the module itself",
        )
    return model


def example_inputs(task: Task, size: int, device: torch.device | None = None) -> Inputs:
    """Return the network's inputs from the task's example batch of `size` samples.

    Raises:
        ConfigError: `example` fails, or lacks an input of the signature.
    """
    names = list(task.signature.inputs)
    try:
        batch = task.example(size)
        return tuple(batch[name].to(device or batch[name].device) for name in names)
    except _NOT_OF_NETWORK:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"example of the task failed: {describe_failure(error)}",
            allowed=f"a dictionary with a tensor for each input of the signature: {', '.join(names)}",
            todo="correct example, or signature (docs/tasks.md)",
        ) from error


def try_out(model: nn.Module, inputs: Inputs, *, name: str, input_names: Sequence[str] = ()) -> Outputs:
    """Run a network in evaluation mode; buffers and torch's random state are restored.

    Raises:
        ModelError: It fails.
    """
    was_training = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad(), buffers_restored(model), random_state_kept(device), first_algorithms():
            outputs = model(*(tensor.to(device) for tensor in inputs))
    except _NOT_OF_NETWORK:
        raise
    except Exception as error:  # user code may raise anything
        shapes = [describe(tensor) for tensor in inputs]
        if input_names:
            shapes = [f"{name} {shape}" for name, shape in zip(input_names, shapes, strict=True)]
        raise ModelError(
            f"{name} cannot take {', '.join(shapes)}: {error}",
            allowed="a network that takes what the task's example gives",
            todo="correct model.arguments or data.image_size, choose another model.architecture, or correct the task",
        ) from error
    model.train(was_training)
    return outputs


def find_output_mismatch(outputs: Outputs, signature: Signature, sizes: Mapping[str, int]) -> str:
    """Return how outputs differ from the signature for inputs of `sizes`; empty if they match."""
    try:
        named = name_outputs(outputs, signature)
    except ModelError as error:
        return error.given
    return find_misfit(named, signature.outputs, dict(sizes))


def check_sizes(
    model: nn.Module, inputs: Inputs, signature: Signature, *, name: str, largest_only: bool = False
) -> None:
    """Run a network at the limits of its dynamic dimensions: one sample at opt, two at min, two at max.

    torch.export and TensorRT accept ranges that the network does not support: a network of 128 positions exports with
    lengths up to 4096 and fails at inference.

    With `largest_only`, run one sample at max only. Inputs are resized from the task's example batch.

    Raises:
        ModelError: It fails at a size, or its outputs do not match the signature.
    """
    dimensions = signature.dimensions
    ends = [(1, "opt"), *([(2, "min"), (2, "max")] if dimensions else [])]
    for batch, end in [(1, "max")] if largest_only else ends:
        sizes = {dimension: int(getattr(dimensions[dimension], end)) for dimension in dimensions}
        resized = resize_inputs(inputs, signature, {BATCH: batch, **sizes})
        try:
            outputs = try_out(model, resized, name=name, input_names=tuple(signature.inputs))
            fault = find_output_mismatch(outputs, signature, {BATCH: batch, **sizes})
        except ModelError as error:
            fault = str(error.__cause__ or error.given).strip().partition("\n")[0]
        if fault:
            size_description, todo = "a batch of 1", "correct the network"
            if end != "opt":
                size_description = " and ".join(f"{dimension} {size}" for dimension, size in sizes.items())
                size_description += f" ({end} of its range in the signature)"
                todo += f", or set {end} of {', '.join(sizes)} in the task's signature to what it takes"
            raise ModelError(
                f"{name} fails at {size_description}: {fault}",
                allowed="a network that takes every size that its signature allows",
                todo=todo,
            )


def parameters_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of a state dict: names, dtypes, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        # Viewed as bytes, since numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is a transformers PreTrainedModel."""
    if "transformers" not in sys.modules:
        return False
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)
