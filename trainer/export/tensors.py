"""Conversion between arrays by name and the positional inputs and outputs of a torch model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from contracts.artifacts.export import Container
from contracts.artifacts.signature import Signature
from contracts.errors import ModelError
from trainer.export.arrays import Array, Arrays
from trainer.model.signature import name_outputs


def take_inputs(batch: Mapping[str, Any], signature: Signature) -> tuple[torch.Tensor, ...]:
    """Return the entries of a batch that the model takes, by position.

    Raises:
        ModelError: One is missing, or no tensor.
    """
    for name in signature.inputs:
        if not isinstance(batch.get(name), torch.Tensor):
            raise ModelError(
                f"the batch has {name!r} as {type(batch.get(name)).__name__}",
                allowed="a tensor for each input of the task's signature",
                todo="return it from the task's to_model, or correct its signature",
            )
    return tuple(batch[name] for name in signature.inputs)


def container_of(outputs: Any) -> Container:
    """Return the container of a model's outputs: tensor, dict or tuple."""
    return "tensor" if isinstance(outputs, torch.Tensor) else "dict" if isinstance(outputs, Mapping) else "tuple"


def restore_outputs(arrays: Mapping[str, Array], kind: str) -> Any:
    """Return arrays by name in the container that the model returns.

    Args:
        arrays: In the order of the signature.
        kind: Container of the outputs (`container_of`).
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if kind == "tensor":
        (tensor,) = tensors.values()
        return tensor
    return tensors if kind == "dict" else tuple(tensors.values())


def run_torch(model: nn.Module, signature: Signature, inputs: Mapping[str, Array]) -> Arrays:
    """Run a model, in evaluation mode, eagerly on the device where its weights are; return its outputs by name."""
    device = next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))
    with torch.inference_mode():
        outputs = model(*(torch.from_numpy(inputs[name]).to(device) for name in signature.inputs))
    named = {name: tensor.cpu() for name, tensor in name_outputs(outputs, signature).items()}
    return {name: (tensor.float() if tensor.is_floating_point() else tensor).numpy() for name, tensor in named.items()}
