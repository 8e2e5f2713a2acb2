"""Tensors of a torch model by the names of its signature.

Here: `take_inputs`, `check_example`, `name_outputs`, `restore_outputs`, `run_torch`. The other modules know arrays by
name; only here it is known that a network takes its inputs by position, and returns a tensor, a tuple or a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from contracts.artifacts.signature import Signature
from contracts.errors import ModelError
from trainer.export.arrays import Array, Arrays

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""By the signature's names."""


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


def check_example(example: Sequence[torch.Tensor], signature: Signature) -> None:
    """Compare the example batch with the signature.

    Raises:
        ModelError: A type or a shape is another, or a dimension that varies has the size 1.
    """
    sizes: dict[str, int] = {}
    for (name, spec), tensor in zip(signature.inputs.items(), example, strict=True):
        shape = list(tensor.shape)
        for size, said in zip(shape, spec.shape, strict=False):
            if isinstance(said, str):
                sizes.setdefault(said, size)
        wanted = [sizes.get(size, 0) if isinstance(size, str) else size for size in spec.shape]
        if tensor.dtype != DTYPES[spec.dtype] or shape != wanted:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"input {name} of the example batch is {kind} {shape}, the task's signature says {spec.dtype} "
                f"{spec.shape}",
                allowed="an example batch as the signature says",
                todo="correct the task's example, its to_model or its signature",
            )
    for name, dimension in signature.dimensions.items():
        size = sizes.get(name, dimension.opt)
        if size == 1 or not dimension.min <= size <= dimension.max or size % dimension.multiple:
            raise ModelError(
                f"{name} is {size} in the example batch",
                allowed=f"a multiple of {dimension.multiple} from {max(2, dimension.min)} to {dimension.max}: "
                "torch.export takes what has the size 1 for a constant",
                todo="give the task's example another size",
            )


def name_outputs(outputs: Any, signature: Signature) -> dict[str, torch.Tensor]:
    """Return what a model gave by the names of its signature.

    Raises:
        ModelError: It is no tensor, tuple or dictionary of tensors, or not what the signature names.
    """
    names = list(signature.outputs)
    if isinstance(outputs, torch.Tensor):
        found: dict[str, Any] = {names[0]: outputs} if len(names) == 1 else {"its only output": outputs}
    elif isinstance(outputs, tuple | list):
        found = dict(zip(names, outputs, strict=True)) if len(names) == len(outputs) else dict(enumerate(outputs))  # type: ignore[arg-type]
    else:
        found = dict(outputs) if isinstance(outputs, Mapping) else {type(outputs).__name__: outputs}
    if set(found) != set(names) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise ModelError(
            f"the model returns {', '.join(f'{name} ({type(tensor).__name__})' for name, tensor in found.items())}; "
            f"the task's signature names {', '.join(names)}",
            allowed="a tensor, or a tuple or dictionary of tensors: one for each output of the signature",
            todo="correct the model's forward, or the task's signature",
        )
    return {name: found[name] for name in names}


def kind_of(outputs: Any) -> str:
    """Return what a model returns: tensor, dict or tuple."""
    return "tensor" if isinstance(outputs, torch.Tensor) else "dict" if isinstance(outputs, Mapping) else "tuple"


def restore_outputs(arrays: Mapping[str, Array], kind: str) -> Any:
    """Return arrays by name as a model returns them.

    Args:
        arrays: In the order of the signature.
        kind: What the model returns (`kind_of`).
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if kind == "tensor":
        (tensor,) = tensors.values()
        return tensor
    return tensors if kind == "dict" else tuple(tensors.values())


def run_torch(model: nn.Module, signature: Signature, inputs: Mapping[str, Array]) -> Arrays:
    """Run a model eagerly in fp32 on the CPU.

    Args:
        model: In evaluation mode.
        signature: Its.
        inputs: A batch.
    """
    with torch.inference_mode():
        outputs = model(*(torch.from_numpy(inputs[name]) for name in signature.inputs))
    named = name_outputs(outputs, signature)
    return {name: (tensor.float() if tensor.is_floating_point() else tensor).numpy() for name, tensor in named.items()}
