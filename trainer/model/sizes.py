"""Sizes of dimensions that vary: a network is run at the ends of their ranges before anything relies on them.

Neither torch.export nor an engine builder refuses a range that the network cannot take: a network of 128 positions is
exported and built with lengths up to 4096, and fails when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from contracts.artifacts.signature import BATCH, Signature
from contracts.errors import ModelError
from trainer.model.build import Inputs, find_other_outputs, try_out


def resize_inputs(inputs: Inputs, signature: Signature, sizes: Mapping[str, int]) -> Inputs:
    """Return inputs of other sizes, of the same values: cut, or repeated from the start.

    Args:
        inputs: By position.
        signature: Of the network.
        sizes: By name of the dimension, `batch` among them; the others stay.
    """
    found = []
    for tensor, spec in zip(inputs, signature.inputs.values(), strict=True):
        for axis, name in enumerate(spec.shape):
            if isinstance(name, str) and name in sizes:
                places = torch.arange(sizes[name], device=tensor.device) % tensor.shape[axis]
                tensor = tensor.index_select(axis, places)
        found.append(tensor)
    return tuple(found)


def largest_sizes(signature: Signature) -> dict[str, int]:
    """Return max of each dimension that varies, besides the batch."""
    return {name: dimension.max for name, dimension in signature.dimensions.items()}


def check_sizes(
    model: nn.Module, inputs: Inputs, signature: Signature, *, name: str, largest_only: bool = False
) -> None:
    """Run a network at the ends of the range of each dimension.

    These are a batch of 1 and of 2, and with 2 samples min, opt, max and max - multiple of each dimension while the
    others are at opt; of several dimensions also all at min, and all at max.

    Args:
        model: The network.
        inputs: A batch of two samples of the task's example, on the device of the network.
        signature: Of the network.
        name: How messages call the network.
        largest_only: Of these only one sample with all dimensions at max.

    Raises:
        ModelError: It fails at a size, or gives outputs of another size than the signature says.
    """
    ran: dict[str, list[int]] = {}
    for dimension, sizes in _largest(signature) if largest_only else _ends(signature):
        given = resize_inputs(inputs, signature, sizes)
        try:
            outputs = try_out(model, given, name=name, input_names=tuple(signature.inputs))
            fault = find_other_outputs(outputs, signature, sizes=sizes)
        except ModelError as error:
            raise _error(name, dimension, sizes, str(error.__cause__ or error.given), ran, signature) from error
        if fault:
            raise _error(name, dimension, sizes, f"it returns {fault}", ran, signature)
        if dimension in sizes:
            ran.setdefault(dimension, []).append(sizes[dimension])


def _largest(signature: Signature) -> Iterator[tuple[str, dict[str, int]]]:
    if sizes := largest_sizes(signature):
        name = next(iter(sizes)) if len(sizes) == 1 else " and ".join(sizes)
        yield name, {BATCH: 1, **sizes}


def _ends(signature: Signature) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the dimension that is tried, or several in words, and sizes of all."""
    dimensions = signature.dimensions
    usual = {BATCH: 2, **{name: dimension.opt for name, dimension in dimensions.items()}}
    for batch in (1, 2):
        yield BATCH, {**usual, BATCH: batch}
    for name, one in dimensions.items():
        for size in sorted({one.min, one.opt, max(one.min, one.max - one.multiple), one.max}):
            yield name, {**usual, name: size}
    if len(dimensions) > 1:
        together = " and ".join(dimensions)
        yield together, {**usual, **{name: dimension.min for name, dimension in dimensions.items()}}
        yield together, {**usual, **largest_sizes(signature)}


def _error(
    name: str, dimension: str, sizes: Mapping[str, int], why: str, ran: Mapping[str, list[int]], signature: Signature
) -> ModelError:
    one, size = signature.dimensions.get(dimension), sizes.get(dimension, 0)
    where = what = ", ".join(f"{each} {number}" for each, number in sizes.items())
    allowed = "a network that takes every size that its signature allows"
    todo = "correct the ranges in the task's signature, or the network"
    if one is not None:
        ends = ", ".join(end for end in ("min", "opt", "max") if getattr(one, end) == size) or "max - multiple"
        end = "min" if size == one.min < one.opt else "max"
        what = f"{dimension} {size} ({ends} of its range in the task's signature)"
        allowed = f"a network that takes every {dimension} from {one.min} to {one.max} in steps of {one.multiple}"
        todo = (
            f"set {end} of {dimension} in the task's signature (by task.arguments, where the task has one for it) to "
            f"what the network takes, or the network's arguments so that it takes {getattr(one, end)}"
        )
    had = f"; it ran at {dimension} {', '.join(map(str, ran[dimension]))}" if dimension in ran else ""
    # What libraries say is often several lines.
    reason = why.strip().partition("\n")[0]
    return ModelError(f"{name} fails at {what}: {reason} (tried at {where}{had})", allowed=allowed, todo=todo)
