"""Optimizer, gradient norm, and learning rate.

The rate of a parameter is the scheduled rate of the step times a factor for its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, assert_never

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from contracts.config import TrainSection
from contracts.errors import ConfigError
from trainer.checkpoint.loading import Group
from trainer.model.freeze import no_match
from trainer.parallel.spread import copy_tensor, full_tensor, local_tensor
from trainer.tasks.task import Task

# Added to the norm before it divides, as torch.nn.utils.clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6


def make_optimizer(
    model: nn.Module, train: TrainSection, factors: Mapping[str, float] | None = None, task: Task | None = None
) -> torch.optim.Optimizer:
    """Return AdamW or SGD; vectors and scalars (biases, normalisation weights) are not decayed.

    Fused optimizers make one pass over the memory, and only they can skip a step by a tensor on the device. Frozen
    parameters are excluded. `factors` are from `rate_factors`; the task's `optimizer` gets the same groups.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    by_kind: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        factor = 1.0 if factors is None else factors[name]
        # An optimizer cannot mix sharded and replicated parameters in one group.
        by_kind.setdefault((parameter.ndim < 2, isinstance(parameter, DTensor), factor), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": 0.0 if is_vector else train.weight_decay, "rate_factor": factor}
        for (is_vector, _, factor), parameters in sorted(by_kind.items(), key=lambda item: item[0])
    ]
    rate = train.learning_rate
    rated = [{**group, "lr": rate * group["rate_factor"]} for group in groups]
    if task is not None and (custom := task.optimizer(rated, rate)) is not None:
        for group in custom.param_groups:
            group["rate_factor"] = float(group["lr"]) / rate
        return custom
    match train.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, fused=True)
        case "sgd":
            # torch 2.13 has no fused SGD for sharded tensors.
            is_sharded = any(isinstance(parameter, DTensor) for parameter in trained.values())
            sgd = torch.optim.SGD(groups, lr=rate, momentum=train.momentum, fused=not is_sharded)
            if train.momentum:
                # SGD allocates them in its first step, even if that step is skipped. Zeros give the same values.
                for parameter in trained.values():
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
        case unknown:
            assert_never(unknown)


@torch.no_grad()
def step_optimizer(
    optimizer: torch.optim.Optimizer, *, found_inf: torch.Tensor, divisor: torch.Tensor | None = None
) -> None:
    """Take an optimizer step, unless `found_inf` is 1.

    Fused optimizers take both tensors as from torch.amp.GradScaler, without a device sync. For others, gradients are
    divided here and the host reads `found_inf`.

    Args:
        optimizer: From `make_optimizer`.
        found_inf: [] float32: 1 to skip the step, else 0.
        divisor: [] float that gradients are divided by; None: 1.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter.device.type == "cpu" for parameter in parameters):
        # The optimizer would copy them with non_blocking=True (torch/optim/adam.py, _fused_adam) and read stale memory.
        found_inf = found_inf.to("cpu")
        divisor = None if divisor is None else divisor.to("cpu")
    fused = _is_fused(optimizer)
    # Fused optimizers divide by a float32.
    if divisor is not None and (not fused or any(parameter.dtype == torch.float64 for parameter in parameters)):
        for parameter in parameters:
            if parameter.grad is not None:
                local_tensor(parameter.grad).div_(divisor)
        divisor = None
    if fused:
        optimizer.grad_scale = None if divisor is None else divisor.float()  # type: ignore[attr-defined]
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        optimizer.step()
    elif not found_inf.item():
        optimizer.step()


def _is_fused(optimizer: torch.optim.Optimizer) -> bool:
    # As torch.amp.GradScaler decides.
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], device: torch.device) -> torch.Tensor:
    """Return the global gradient norm on a device, [] float32, equal on all ranks."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    if not sharded:
        return torch.nn.utils.get_total_norm(gradients)
    # A sharded gradient has a sharded norm.
    norms = [full_tensor(torch.nn.utils.get_total_norm(sharded)).to(device)]
    if replicated := [gradient for gradient in gradients if not isinstance(gradient, DTensor)]:
        norms.append(torch.nn.utils.get_total_norm(replicated))
    return torch.linalg.vector_norm(torch.stack(norms)) if replicated else norms[0]


def clip_divisor(norm: torch.Tensor, most: float) -> torch.Tensor:
    """Return the divisor that clips gradients of a norm to `most`; at least 1."""
    return ((norm + _CLIP_EPSILON) / most).clamp(min=1.0)


def learning_rate(step: int, *, total_steps: int, train: TrainSection, task: Task | None = None) -> float:
    """Return the rate of optimizer step `step` (from 0): linear warmup, then the cosine or constant of train.schedule.

    A task's `schedule` overrides it with a factor of the peak. The cosine is from Loshchilov and Hutter, "SGDR", 2016,
    without restarts.
    """
    peak = train.learning_rate
    if task is not None and (factor := task.schedule(step, total_steps)) is not None:
        return peak * float(factor)
    warmup = round(train.warmup_fraction * total_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    match train.schedule:
        case "constant":
            return peak
        case "cosine":
            progress = (step - warmup) / max(1, total_steps - warmup)
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
        case unknown:
            assert_never(unknown)


def rate_factors(model: nn.Module, train: TrainSection) -> dict[str, float]:
    """Return the learning rate factor of each parameter of an unwrapped network, from train.learning_rates.

    Raises:
        ConfigError: A pattern matches no parameter, or two of them match one.
    """
    names = [name for name, _ in model.named_parameters()]
    matches: dict[str, str] = {}
    for pattern in train.learning_rates:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise no_match("train.learning_rates", pattern, names)
        for name in matched:
            if (previous_pattern := matches.setdefault(name, pattern)) != pattern:
                raise ConfigError(
                    f"train.learning_rates: {previous_pattern!r} and {pattern!r} both match {name}",
                    allowed="patterns that match different parameters, since none of two comes first",
                    todo="narrow one of them; what none matches has train.learning_rate itself",
                )
    return {name: train.learning_rates[matches[name]] if name in matches else 1.0 for name in names}


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of all parameter groups to `value` times their factor."""
    for group in optimizer.param_groups:
        group["lr"] = value * group["rate_factor"]


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors as `parameter/entry`, in model order on all ranks."""
    return {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor)
    }


def load_named_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: Group) -> None:
    """Restore the result of `named_state` on the device of the parameters.

    A tensor with its parameter's shape gets the parameter's sharding and memory layout, which fused optimizers require.
    """
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if tuple(value.shape) == tuple(parameter.shape):
            restored = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
            copy_tensor(restored, value)
        else:
            # Fused optimizers need it on the parameter's device; others read it on the host.
            restored = value[...].to(parameter.device if _is_fused(optimizer) else "cpu", copy=True)
        optimizer.state[parameter][entry] = restored
