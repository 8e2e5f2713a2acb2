"""The network of a task: built, tried out on the task's example batch, and a hash of its parameters."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from contracts.artifacts.signature import BATCH, Signature, TensorSpec
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from trainer.model.tensors import by_name, check_example
from trainer.model.trial import buffers_restored, first_algorithms, random_state_kept
from trainer.tasks.load import describe_failure, network_name
from trainer.tasks.protocol import Outputs, Task

Inputs = tuple[torch.Tensor, ...]
"""What a network takes, by position: the entries of a batch that the task's signature names."""

# What a network of a library raises, while it is built, when its arguments do not fit.
MISFITS = (
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


def build_model(task: Task, config: RunConfig, place: Callable[[nn.Module], torch.device] | None = None) -> nn.Module:
    """Build the network of a task with random weights from torch's current seed, and run it once on its example batch.

    Args:
        task: The task.
        config: The configuration, for messages.
        place: Says where the network is tried out and left; None: where it was built. A network with lazy modules is
            tried out where it was built, since that call makes their weights, from the seed.

    Raises:
        ModelError: It cannot be built, or example or outputs are not those of the task's signature.
    """
    name, inputs = network_name(config, arguments=True), example_inputs(task, 2)
    check_example(inputs, task.signature, any_float=True)
    model = construct_model(task, config)
    complete_model(model, inputs, name=name, input_names=tuple(task.signature.inputs))
    if place is not None:
        model = model.to(place(model))
    outputs = try_out(model, inputs, name=name, input_names=tuple(task.signature.inputs))
    if found := find_other_outputs(outputs, task.signature, sizes={BATCH: 2}):
        raise ModelError(
            f"{name} returns {found} for two samples",
            allowed=f"outputs as in the task's signature: {describe_specs(task.signature.outputs)}",
            todo="correct model.arguments, or choose another model.architecture"
            if not config.task.is_own
            else "correct build_model or signature of the task",
        )
    return model


def construct_model(task: Task, config: RunConfig) -> nn.Module:
    """Return the network of a task as it builds it, without a forward pass: lazy modules have no tensors yet.

    Raises:
        ModelError: It cannot be built.
    """
    try:
        model = task.build_model()
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise ModelError(
            f"{network_name(config)} cannot be built: {type(error).__name__}: {error}",
            allowed="a task whose build_model returns a torch.nn.Module",
            todo="correct build_model, or task.arguments",
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{network_name(config)}: build_model returned a {type(model).__name__}",
            allowed="a torch.nn.Module",
            todo="return the module itself",
        )
    return model


def complete_model(model: nn.Module, inputs: Inputs, *, name: str, input_names: Sequence[str] = ()) -> None:
    """Have lazy modules make their tensors, by a forward pass where the others are.

    Args:
        model: The network.
        inputs: As it takes them.
        name: How messages call it.
        input_names: How messages call the inputs.
    """
    if any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        try_out(model, inputs, name=name, input_names=input_names)


def example_inputs(task: Task, size: int, device: torch.device | None = None) -> Inputs:
    """Return what the network takes of the task's example batch of `size` samples.

    Raises:
        ConfigError: `example` fails, or lacks an input of the signature.
    """
    names = list(task.signature.inputs)
    try:
        batch: object = task.example(size)
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise _example_error(f"failed: {describe_failure(error)}", names) from error
    if not isinstance(batch, Mapping):
        raise _example_error(f"returned a {type(batch).__name__}", names)
    inputs: list[torch.Tensor] = []
    for name in names:
        if not isinstance(tensor := batch.get(name), torch.Tensor):
            found = f"{name} as a {type(tensor).__name__}" if name in batch else f"no {name}"
            raise _example_error(f"returned {found}", names)
        inputs.append(tensor.to(device) if device else tensor)
    return tuple(inputs)


def _example_error(found: str, names: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"example of the task {found}",
        allowed=f"a dictionary with a tensor for each input of the signature: {', '.join(names)}",
        todo="correct example, or signature (docs/tasks.md)",
    )


def find_other_outputs(outputs: Outputs, signature: Signature, *, sizes: Mapping[str, int]) -> str:
    """Return what outputs are that are not those of a signature; empty: they are.

    Args:
        outputs: Of the network.
        signature: Its.
        sizes: Of the inputs' dimensions by name, `batch` among them; others may be any.
    """
    if not isinstance(outputs, torch.Tensor | tuple | list | Mapping):
        return _describe(outputs)
    found = by_name(outputs, signature)
    if found.keys() != signature.outputs.keys():
        return f"the outputs {', '.join(map(str, found))}" if isinstance(outputs, Mapping) else f"{len(found)} outputs"
    for name, spec in signature.outputs.items():
        one = found[name]
        if not isinstance(one, torch.Tensor):
            return f"{_describe(one)} as {name}"
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape]
        fits = one.ndim == len(wanted) and all(
            isinstance(size, str) or size == given for size, given in zip(wanted, one.shape, strict=True)
        )
        if not fits or one.is_floating_point() != (spec.dtype == "float32"):
            return f"{_describe(one)}" + (f" as {name}" if len(found) > 1 else "")
    return ""


def describe_specs(specs: Mapping[str, TensorSpec]) -> str:
    """Return names, types and shapes of tensors in words."""
    return ", ".join(f"{name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for name, spec in specs.items())


def find_gradient_use(model: nn.Module, loss: Callable[[], torch.Tensor]) -> GradientUse:
    """Return the parameters that ask for a gradient and do not get one in each training pass.

    Parameters, buffers and gradients are as before afterwards.

    Args:
        model: A model that no rank has wrapped yet.
        loss: Runs the model on a batch in the mode that it is in, and returns the sum of the loss.

    Raises:
        ModelError: The model cannot be trained: no parameter gets a gradient.
    """
    was_training = model.training
    asking = [name for name, tensor in model.named_parameters() if tensor.requires_grad]
    with buffers_restored(model):
        before = _random_states()
        trained = [_reached_by_gradient(model, loss, training=True)]
        if _random_states() != before:
            # It may leave out layers at random (stochastic depth), and have left out none this time.
            trained += [_reached_by_gradient(model, loss, training=True) for _ in range(_MORE_PASSES)]
        evaluated = _reached_by_gradient(model, loss, training=False)
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


def _reached_by_gradient(model: nn.Module, loss: Callable[[], torch.Tensor], *, training: bool) -> set[str]:
    """Return the names of the parameters that get a gradient in a pass; no gradient is kept."""
    model.train(training)
    found = loss()
    if not found.requires_grad:
        raise ModelError(
            f"the model cannot be trained: in {'training' if training else 'evaluation'} mode its loss has no gradient",
            allowed="a torch.nn.Module whose outputs depend on its parameters in both modes",
            todo="correct model.architecture, model.arguments or the task",
        )
    (found * 0).backward()  # type: ignore[no-untyped-call]
    names = {name for name, tensor in model.named_parameters() if tensor.grad is not None}
    model.zero_grad(set_to_none=True)
    return names


def find_single_sample_fault(model: nn.Module, inputs: Inputs) -> str | None:
    """Return why the model cannot train on one sample alone (BatchNorm at a spatial size of 1), or None.

    Parameters and buffers are as before afterwards.

    Args:
        model: A model that trains on more samples.
        inputs: Of one sample, on the model's device.
    """
    was_training = model.training
    model.train()
    try:
        with torch.no_grad(), buffers_restored(model), first_algorithms():
            model(*inputs)
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


def is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is one of transformers' networks, which saves and loads folders by itself."""
    if "transformers" not in sys.modules:
        return False
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


def try_out(model: nn.Module, inputs: Inputs, *, name: str, input_names: Sequence[str]) -> Outputs:
    """Run a network in evaluation mode; buffers and torch's random state are as before afterwards.

    Args:
        model: The network.
        inputs: As it takes them, on any device.
        name: How messages call it.
        input_names: How messages call the inputs.

    Raises:
        ModelError: It fails.
    """
    was_training = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad(), buffers_restored(model), random_state_kept(device), first_algorithms():
            outputs = model(*(tensor.to(device) for tensor in inputs))
    except (UserError, MemoryError, torch.OutOfMemoryError):
        # A misfit of the machine, not of the network.
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        given = [f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in inputs]
        if input_names:
            given = [f"{one} {shape}" for one, shape in zip(input_names, given, strict=True)]
        raise ModelError(
            f"{name} cannot take {', '.join(given)}: {error}",
            allowed="a network that takes what the task's example gives",
            todo="correct model.arguments or data.image_size, choose another model.architecture, or correct the task",
        ) from error
    model.train(was_training)
    return outputs


def _describe(output: object) -> str:
    if isinstance(output, torch.Tensor):
        return f"a {output.dtype} tensor of shape {tuple(output.shape)}"
    return "nothing" if output is None else f"a {type(output).__name__}"
