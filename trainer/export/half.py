"""The fp16 graph: a half model, traced. Weights and arithmetic are float16, inputs and outputs stay float32.

Modules with weights cast their inputs to float16. The model's own inputs are not cast: ids, masks and large values stay
in float32. Modules with values beyond float16's range stay in float32, and so do modules that read such values; one
float32 pass that observes every operation finds both. BatchNorm is folded into convolutions before, in float32: the
exporter would fold it in float16 (1.7 to 6 times less exact on ResNet).
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
from trainer.export.compare import LIMITS, ModelFile, Trial, describe_failed, judge_parity
from trainer.export.onnx_graph import export_graph, use_eager_attention
from trainer.export.tensors import run_torch

FP16_MAX = 65504.0
"""Largest finite number of IEEE 754 binary16."""
# Values of other samples may be twice as large.
_LIMIT = FP16_MAX / 2
# Larger values are fill values of masks.
_MASK = 1e30
# Errors of the machine, and errors that name a remedy.
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
        feed: Inputs of the model, some samples: used to find values beyond float16, and to compare the half model with
            the fp32 model.
        cautious: Keep all normalisation in fp32, and attention as the model has it: the second try.

    Raises:
        ModelError: The half model cannot run or be traced, no part of it can stay in fp32, or its outputs differ from
            those of the fp32 model.
    """
    tensors = tuple(torch.from_numpy(feed[name]) for name in signature.inputs)
    trial = Trial("samples", feed, run_torch(model, signature, feed))
    try:
        if not cautious:
            use_eager_attention(model)
        half = HalfModel(fold_batch_norms(model, tensors), tensors, cautious=cautious)
        _require_same_outputs(half, path.name, signature, trial)
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
    return sorted(half.fp32_modules)


def fold_batch_norms(model: nn.Module, feed: Sequence[torch.Tensor]) -> nn.Module:
    """Fold each BatchNorm2d into the convolution that feeds it, found by a forward pass; return the changed model.

    Nothing is folded if outputs would change, for example because another module reads the convolution's output.
    """
    convolutions: dict[int, tuple[str, torch.Tensor, int]] = {}
    pairs: list[tuple[str, str]] = []
    hooks = []

    def record_output(name: str, module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        # The reference keeps the tensor's id unique; its version counts in-place operations.
        convolutions[id(output)] = name, output, output._version

    def record_pair(name: str, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        convolution, tensor, version = convolutions.get(id(arguments[0]) if arguments else 0, ("", None, 0))
        if tensor is not None and tensor._version == version:
            pairs.append((convolution, name))

    for name, module in model.named_modules():
        # Subclasses may compute otherwise.
        if type(module) is nn.Conv2d:
            hooks.append(module.register_forward_hook(partial(record_output, name)))
        elif type(module) is nn.BatchNorm2d and module.running_mean is not None:
            hooks.append(module.register_forward_pre_hook(partial(record_pair, name)))
    with torch.no_grad():
        expected = model(*feed)
    for hook in hooks:
        hook.remove()
    # Modules that are called twice are in several pairs.
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
    """Whether outputs differ by no more than the limit of fp32 graphs."""
    limit = LIMITS["fp32"].relative_error
    pairs = [(left.double(), right.double()) for left, right in zip(actual, expected, strict=True)]
    return all((left - right).abs().max() <= limit * (right.max() - right.min()) for left, right in pairs)


class _RangeMonitor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the innermost running module of each operation that returns values beyond float16's range."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = [""]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        # Views of weights and inputs are not computed values.
        if not getattr(func, "is_view", False) and _is_beyond_fp16(output):
            self.names.add(self.running[-1])
        return output


def _is_beyond_fp16(values: Any) -> bool:
    """Whether floating-point tensors in a tuple, list or dictionary hold values beyond half of float16's range."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_floating_point()]
    sizes = (tensor.abs() for tensor in tensors)
    return any(((size > _LIMIT) & (size < _MASK)).any() for size in sizes)


def modules_beyond_fp16(model: nn.Module, feed: Sequence[torch.Tensor]) -> tuple[set[str], set[str]]:
    """Return the names of modules that must stay in fp32, and of those with outputs beyond fp16; "": the model itself.

    The former have weights or intermediate values beyond float16's range, or have weights and read such values.
    """
    monitor, fp32_modules, overflowing, hooks = _RangeMonitor(), set[str](), set[str](), []

    def enter(name: str, module: nn.Module, arguments: Any, named: Any) -> None:
        monitor.running.append(name)
        with _disable_current_modes():
            if _has_weights(module) and _is_beyond_fp16((arguments, named)):
                fp32_modules.add(name)

    def leave(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        monitor.running.pop()
        with _disable_current_modes():
            if _is_beyond_fp16(output):
                overflowing.add(name)

    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(leave, name)))
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if _is_beyond_fp16([tensor.detach() for tensor in tensors]):
            fp32_modules.add(name)
    # The plain implementation of attention shows its scores to the monitor.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), monitor:
        model(*feed)
    for hook in hooks:
        hook.remove()
    # With its parent, which computes with these values; the model itself is no such parent.
    leaves = {name for name, module in model.named_modules() if name and not list(module.children())}
    fp32_modules |= {name.rpartition(".")[0] or name if name in leaves else name for name in monitor.names}
    return fp32_modules, overflowing


def _add_sharing(model: nn.Module, fp32_modules: set[str]) -> set[str]:
    """Return the modules and all that share weights with them, without nested ones."""
    while True:
        weights = {id(weight) for name in fp32_modules for weight in model.get_submodule(name).parameters()}
        weights_of = {name: [*module.parameters(recurse=False)] for name, module in model.named_modules()}
        sharing = {name for name, listed in weights_of.items() if any(id(weight) in weights for weight in listed)}
        if sharing <= fp32_modules:
            return {name for name in fp32_modules if not any(name.startswith(f"{outer}.") for outer in fp32_modules)}
        fp32_modules |= sharing


class HalfModel(nn.Module):
    """A model in float16, changed in place; inputs, outputs and the modules in `fp32_modules` stay in float32.

    Args:
        model: In evaluation mode, in fp32.
        feed: Samples for finding values beyond float16.
        cautious: Keep all normalisation.

    Raises:
        ModelError: No part of the model can stay in fp32.
    """

    def __init__(self, model: nn.Module, feed: Sequence[torch.Tensor], *, cautious: bool = False) -> None:
        super().__init__()
        self.model = model
        fp32_modules, overflowing = modules_beyond_fp16(model, feed)
        modules = dict(model.named_modules())
        if cautious:
            fp32_modules |= {name for name, module in modules.items() if name and "Norm" in type(module).__name__}
        self.fp32_modules = _add_sharing(model, fp32_modules)
        if "" in self.fp32_modules:
            raise ModelError(
                f"values of the model go beyond {_LIMIT:.0f} outside of its submodules",
                allowed=f"values within float16's range (up to {FP16_MAX:.0f}), or larger values inside of a submodule",
                todo="set export.precision=fp32, or compute these values in a torch.nn.Module of their own",
            )
        # Casting these weights to float16 would lose values beyond its range.
        inside = {id(module) for name in self.fp32_modules for module in modules[name].modules()}
        for module in modules.values():
            if id(module) not in inside and _has_weights(module):
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    tensor.data = _cast(torch.float16, tensor.data)
                module.register_forward_pre_hook(partial(_cast_inputs, torch.float16), with_kwargs=True)
        for name in self.fp32_modules:
            modules[name].register_forward_pre_hook(partial(_cast_inputs, torch.float32), with_kwargs=True)
            # Outputs beyond float16 stay in float32: modules that read them are in float32 or have no weights.
            if name not in overflowing:
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


def _require_same_outputs(half: nn.Module, file: str, signature: Signature, trial: Trial) -> None:
    """Refuse a half model with different outputs; ONNX Runtime on a CPU computes in fp32 and would miss an overflow."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = partial(run_torch, half.to(device), signature)
    gate = judge_parity(run, [trial], signature, ModelFile("fp16", file, f"torch {torch.__version__}"))
    half.cpu()
    if gate.status == "failed":
        raise ModelError(
            f"outputs of the model in fp16 differ from fp32: {describe_failed([gate])}",
            allowed="a model with values within float16's range",
            todo="nothing: the export continues with a larger precision",
        )
