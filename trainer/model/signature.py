"""Compare inputs and outputs of a network with its task's signature, and resize inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from contracts.artifacts.signature import Signature, TensorSpec
from contracts.errors import ModelError

Inputs = tuple[torch.Tensor, ...]
"""Inputs of a network, by position: the entries of a batch that the task's signature names."""

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""torch dtypes by their names in a signature."""


def check_example(example: Sequence[torch.Tensor], signature: Signature, *, any_float: bool = False) -> None:
    """Compare the inputs of the example batch, by position, with the signature.

    Raises:
        ModelError: A dtype or shape differs, or a dynamic dimension has size 1.
    """
    sizes: dict[str, int] = {}
    inputs = dict(zip(signature.inputs, example, strict=True))
    if mismatch := find_misfit(inputs, signature.inputs, sizes, any_float=any_float, of=" of the example batch"):
        raise ModelError(
            f"input {mismatch}",
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


def find_misfit(
    tensors: Mapping[str, object],
    specs: Mapping[str, TensorSpec],
    sizes: dict[str, int],
    *,
    any_float: bool = True,
    of: str = "",
) -> str:
    """Describe the first tensor whose dtype or shape differs from its specification; empty if all match.

    Sizes of named dimensions are added to `sizes` from the first tensor that has them. With `any_float`, any floating
    point dtype matches float32. `of` is appended to the tensor's name in the message.
    """
    for name, spec in specs.items():
        tensor = tensors.get(name)
        expected = f"the task's signature says {spec.dtype} [{', '.join(map(str, spec.shape))}]"
        if not isinstance(tensor, torch.Tensor):
            return f"{name}{of} is {describe(tensor)}, {expected}"
        shape = [
            sizes.setdefault(size, actual) if isinstance(size, str) else size
            for size, actual in zip(spec.shape, tensor.shape, strict=False)
        ]
        is_float = any_float and spec.dtype == "float32" and tensor.is_floating_point()
        same_type = is_float or tensor.dtype == DTYPES[spec.dtype]
        if not same_type or tensor.ndim != len(spec.shape) or list(tensor.shape) != shape:
            return f"{name}{of} is {describe(tensor)}, {expected}"
    return ""


def name_outputs(outputs: Any, signature: Signature) -> dict[str, Any]:
    """Return the outputs of a model by the names of its signature.

    Raises:
        ModelError: They are not a tensor, tuple or dictionary of tensors, or do not match the signature.
    """
    names = list(signature.outputs)
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    if isinstance(outputs, tuple | list) and len(outputs) == len(names):
        outputs = dict(zip(names, outputs, strict=True))
    is_named = isinstance(outputs, Mapping) and set(outputs) == set(names)
    if not is_named or not all(isinstance(tensor, torch.Tensor) for tensor in outputs.values()):
        raise ModelError(
            f"the model returns {describe(outputs)}; the task's signature names {', '.join(names)}",
            allowed="a tensor, or a tuple or dictionary of tensors: one for each output of the signature",
            todo="correct the model's forward, or the task's signature",
        )
    return {name: outputs[name] for name in names}


def largest_sizes(signature: Signature) -> dict[str, int]:
    """Return the maximum of each dynamic dimension, without the batch."""
    return {name: dimension.max for name, dimension in signature.dimensions.items()}


def resize_inputs(inputs: Inputs, signature: Signature, sizes: Mapping[str, int]) -> Inputs:
    """Return inputs resized to `sizes` by dimension, cut or repeated from the start."""
    resized = []
    for tensor, spec in zip(inputs, signature.inputs.values(), strict=True):
        for axis, name in enumerate(spec.shape):
            if isinstance(name, str) and name in sizes:
                indices = torch.arange(sizes[name], device=tensor.device) % tensor.shape[axis]
                tensor = tensor.index_select(axis, indices)
        resized.append(tensor)
    return tuple(resized)


def describe(value: object) -> str:
    """Describe dtype and shape: `int64 [2, 4]`, `a dictionary of logits, hidden`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, tuple | list):
        return f"{len(value)} outputs ({', '.join(map(describe, value))})"
    return "nothing" if value is None else f"a {type(value).__name__}"
