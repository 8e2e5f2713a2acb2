"""Inputs and outputs of a network held against its signature: the example batch, and outputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from contracts.artifacts.signature import Signature
from contracts.errors import ModelError

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""By the signature's names."""


def check_example(example: Sequence[torch.Tensor], signature: Signature, *, any_float: bool = False) -> None:
    """Compare the example batch with the signature.

    Args:
        example: Inputs by position.
        signature: The task's.
        any_float: Other floating-point types pass for float32, as those of outputs do in training.

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
        fits = tensor.dtype == DTYPES[spec.dtype]
        if any_float and spec.dtype == "float32":
            fits = tensor.is_floating_point()
        if not fits or shape != wanted:
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


def by_name(outputs: Any, signature: Signature) -> dict[str, Any]:
    """Return what a model gave by name, whatever it is: those of its signature where they are as many.

    A dictionary keeps its own names.
    """
    names = list(signature.outputs)
    if isinstance(outputs, torch.Tensor):
        return {names[0]: outputs} if len(names) == 1 else {"its only output": outputs}
    if isinstance(outputs, tuple | list):
        keys = names if len(names) == len(outputs) else [str(place) for place in range(len(outputs))]
        return dict(zip(keys, outputs, strict=True))
    return dict(outputs) if isinstance(outputs, Mapping) else {type(outputs).__name__: outputs}


def name_outputs(outputs: Any, signature: Signature) -> dict[str, torch.Tensor]:
    """Return what a model gave by the names of its signature.

    Raises:
        ModelError: It is no tensor, tuple or dictionary of tensors, or not what the signature names.
    """
    names, found = list(signature.outputs), by_name(outputs, signature)
    if set(found) != set(names) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise ModelError(
            f"the model returns {', '.join(f'{name} ({type(tensor).__name__})' for name, tensor in found.items())}; "
            f"the task's signature names {', '.join(names)}",
            allowed="a tensor, or a tuple or dictionary of tensors: one for each output of the signature",
            todo="correct the model's forward, or the task's signature",
        )
    return {name: found[name] for name in names}
