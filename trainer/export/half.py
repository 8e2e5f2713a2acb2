"""The fp16 graph: a half model, traced. Weights and arithmetic are float16, inputs and outputs stay float32.

Values are cast to float16 where a module owns weights, not at the model's door: ids, masks and large inputs that a
model treats as float32 by itself stay so. Modules whose values leave float16's range on samples stay in float32, and so
do those that read such values, found in one float32 pass that watches every operation. BatchNorm is folded into
convolutions before, in float32: the exporter would fold it in float16 (1.7 to 6 times less exact on ResNet).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from contracts.artifacts.signature import Signature
from contracts.errors import ModelError, ShardlineError
from trainer.export.arrays import Arrays
from trainer.export.compare import LIMITS, Subject, Trial, describe_failed, judge_parity
from trainer.export.onnx_graph import export_graph, use_eager_attention
from trainer.export.tensors import run_torch

FP16_MAX = 65504.0
"""Largest finite number of IEEE 754 binary16."""
# Values of other samples may be twice as large.
_WATCHED = FP16_MAX / 2
# Larger values fill masks; their size means nothing.
_MASK = 1e30
# Errors of the machine, and those that say already what to do.
_NOT_OF_MODEL = (ShardlineError, MemoryError, OSError, torch.OutOfMemoryError)


def write_fp16(
    model: nn.Module,
    path: Path,
    *,
    signature: Signature,
    example: Sequence[torch.Tensor],
    feed: Arrays,
    cautious: bool = False,
) -> list[str]:
    """Write the fp16 graph of a model; return the names of the modules that stay in fp32.

    Args:
        model: In evaluation mode, in fp32; it becomes the half model.
        path: File to write.
        signature: Inputs and outputs of the model.
        example: `onnx_graph.EXAMPLE_BATCH` samples of each input.
        feed: Inputs of the model, some samples: they say what is beyond float16, and the half model must answer them as
            the fp32 model does.
        cautious: Keep all normalisation in fp32, and attention as the model has it: the second try.

    Raises:
        ModelError: The half model cannot run or be traced, no part of it can stay in fp32, or it answers otherwise than
            the fp32 model.
    """
    tensors = tuple(torch.from_numpy(feed[name]) for name in signature.inputs)
    trial = Trial("samples", feed, run_torch(model, signature, feed))
    try:
        if not cautious:
            use_eager_attention(model)
        half = HalfModel(fold_batch_norms(model, tensors), tensors, cautious=cautious)
        _require_same_answers(half, path.name, signature, trial)
        export_graph(half, path, signature=signature, example=example, keep_attention=cautious)
    except _NOT_OF_MODEL:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"the model in fp16 fails: {type(error).__name__}: {reason}",
            allowed="a model that runs with float16 weights",
            todo="make helper tensors with .to(x.dtype) in its forward, or set export.precision=fp32",
        ) from error
    return sorted(half.kept)


def fold_batch_norms(model: nn.Module, feed: Sequence[torch.Tensor]) -> nn.Module:
    """Return the model, changed: each BatchNorm2d that reads a convolution's output, as a pass shows, is part of it.

    Nothing is folded where the model would answer otherwise, as where something else reads a convolution, too.
    """
    convolutions: dict[int, tuple[str, torch.Tensor, int]] = {}
    pairs: list[tuple[str, str]] = []
    hooks = []

    def remember(name: str, module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        # The tensor is kept alive: its id names it. Its version counts what was done in place.
        convolutions[id(output)] = name, output, output._version

    def pair(name: str, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        convolution, tensor, version = convolutions.get(id(arguments[0]) if arguments else 0, ("", None, 0))
        if tensor is not None and tensor._version == version:
            pairs.append((convolution, name))

    for name, module in model.named_modules():
        # Subclasses may compute otherwise.
        if type(module) is nn.Conv2d:
            hooks.append(module.register_forward_hook(partial(remember, name)))
        elif type(module) is nn.BatchNorm2d and module.running_mean is not None:
            hooks.append(module.register_forward_pre_hook(partial(pair, name)))
    with torch.no_grad():
        expected = model(*feed)
    for hook in hooks:
        hook.remove()
    # A module that is called twice reads, or is read by, more than one other.
    single = [pair for pair in pairs if sum(pair[0] == other[0] or pair[1] == other[1] for other in pairs) == 1]
    unfolded = {name: model.get_submodule(name) for pair in single for name in pair}
    for convolution, norm in single:
        fused = fuse_conv_bn_eval(unfolded[convolution], unfolded[norm])  # type: ignore[type-var,arg-type]
        model.set_submodule(convolution, fused)
        model.set_submodule(norm, nn.Identity())
    with torch.no_grad():
        same = not single or _are_close(tree_leaves(model(*feed)), tree_leaves(expected))
    if not same:
        for name, module in unfolded.items():
            model.set_submodule(name, module)
    return model


def _are_close(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether outputs differ by no more than fp32 graphs may, of the range of each."""
    limit = LIMITS["fp32"].relative_error
    pairs = [(left.double(), right.double()) for left, right in zip(actual, expected, strict=True)]
    return all((left - right).abs().max() <= limit * (right.max() - right.min()) for left, right in pairs)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the innermost module that runs whenever an operation returns values beyond float16's range."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = [""]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        # A view of a weight or of an input is nothing computed.
        if not getattr(func, "is_view", False) and _is_beyond_fp16(output):
            self.names.add(self.running[-1])
        return output


def _is_beyond_fp16(values: Any) -> bool:
    """Whether floating-point tensors in a tuple, list or dictionary hold values beyond half of float16's range."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_floating_point()]
    sizes = (tensor.abs() for tensor in tensors)
    return any(((size > _WATCHED) & (size < _MASK)).any() for size in sizes)


def modules_beyond_fp16(model: nn.Module, feed: Sequence[torch.Tensor]) -> tuple[set[str], set[str]]:
    """Return the names of modules that cannot be in fp16, and of those whose outputs cannot; "": the model itself.

    The first have weights or compute values beyond float16's range, or have weights and take such values.
    """
    watch, kept, wide, hooks = _Watch(), set[str](), set[str](), []

    def enter(name: str, module: nn.Module, arguments: Any, named: Any) -> None:
        watch.running.append(name)
        with _disable_current_modes():
            if _has_weights(module) and _is_beyond_fp16((arguments, named)):
                kept.add(name)

    def leave(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        watch.running.pop()
        with _disable_current_modes():
            if _is_beyond_fp16(output):
                wide.add(name)

    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(leave, name)))
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if _is_beyond_fp16([tensor.detach() for tensor in tensors]):
            kept.add(name)
    # The plain implementation of attention shows its scores to the watch.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), watch:
        model(*feed)
    for hook in hooks:
        hook.remove()
    # With its parent, which computes with these values; the model itself is no such parent.
    leaves = {name for name, module in model.named_modules() if name and not list(module.children())}
    kept |= {name.rpartition(".")[0] or name if name in leaves else name for name in watch.names}
    return kept, wide


def _add_sharing(model: nn.Module, kept: set[str]) -> set[str]:
    """Return the modules to keep and all that share a weight with them, without those within another one."""
    while True:
        weights = {id(weight) for name in kept for weight in model.get_submodule(name).parameters()}
        weights_of = {name: [*module.parameters(recurse=False)] for name, module in model.named_modules()}
        sharing = {name for name, listed in weights_of.items() if any(id(weight) in weights for weight in listed)}
        if sharing <= kept:
            return {name for name in kept if not any(name.startswith(f"{outer}.") for outer in kept)}
        kept |= sharing


class HalfModel(nn.Module):
    """A model in float16, changed in place, with inputs and outputs as before; the modules in `kept` stay in float32.

    Args:
        model: In evaluation mode, in fp32.
        feed: Samples that say what is beyond float16.
        cautious: Keep all normalisation.

    Raises:
        ModelError: No part of the model can stay in fp32.
    """

    def __init__(self, model: nn.Module, feed: Sequence[torch.Tensor], *, cautious: bool = False) -> None:
        super().__init__()
        self.model = model
        kept, wide = modules_beyond_fp16(model, feed)
        modules = dict(model.named_modules())
        if cautious:
            kept |= {name for name, module in modules.items() if name and "Norm" in type(module).__name__}
        self.kept = _add_sharing(model, kept)
        if "" in self.kept:
            raise ModelError(
                f"values of the model go beyond {_WATCHED:.0f} outside of its submodules",
                allowed=f"values within float16's range (up to {FP16_MAX:.0f}), or a submodule that has the others",
                todo="set export.precision=fp32, or compute these values in a torch.nn.Module of their own",
            )
        # Their weights are never halved: a value beyond float16 would be lost for good.
        inside = {id(module) for name in self.kept for module in modules[name].modules()}
        for module in modules.values():
            if id(module) not in inside and _has_weights(module):
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    tensor.data = _cast(torch.float16, tensor.data)
                module.register_forward_pre_hook(partial(_cast_inputs, torch.float16), with_kwargs=True)
        for name in self.kept:
            modules[name].register_forward_pre_hook(partial(_cast_inputs, torch.float32), with_kwargs=True)
            # What float16 cannot hold goes on in float32: what reads it is kept, or has no weights.
            if name not in wide:
                modules[name].register_forward_hook(_cast_output)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the model's outputs, floating-point ones in float32."""
        return tree_map(partial(_cast, torch.float32), self.model(*inputs))


def _has_weights(module: nn.Module) -> bool:
    return any(parameter.is_floating_point() for parameter in module.parameters(recurse=False))


def _cast(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _cast_inputs(dtype: torch.dtype, module: nn.Module, arguments: Any, named: Any) -> Any:
    return tree_map(partial(_cast, dtype), (arguments, named))


def _cast_output(module: nn.Module, arguments: Any, output: Any) -> Any:
    return tree_map(partial(_cast, torch.float16), output)


def _require_same_answers(half: nn.Module, file: str, signature: Signature, trial: Trial) -> None:
    """Refuse a half model that answers otherwise: ONNX Runtime computes in fp32 on a CPU and overlooks an overflow."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = partial(run_torch, half.to(device), signature)
    gate = judge_parity(run, [trial], signature, Subject("fp16", file, f"torch {torch.__version__}"))
    half.cpu()
    if gate.status == "failed":
        raise ModelError(
            f"the model in fp16 does not answer as in fp32: {describe_failed([gate])}",
            allowed="a model whose values float16 can hold",
            todo="nothing: the export goes on with a larger precision",
        )
