"""The optimizer with decay where it belongs, the norm of gradients, and a learning rate that only the step decides.

The rate of a parameter is that of the step times a factor of its own, which the names of parameters decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.sgd import sgd

from contracts.config import TrainSection
from contracts.errors import ConfigError
from trainer.checkpoint.tensors import Group, Rows, global_shape
from trainer.model.freeze import no_match
from trainer.parallel import copy_tensor, full_tensor, local_tensor
from trainer.tasks.protocol import Task

# Added to the norm before it divides, as torch.nn.utils.clip_grad_norm_ does.
_CLIP_EPSILON = 1e-6


def make_optimizer(
    model: nn.Module, train: TrainSection, factors: Mapping[str, float] | None = None, task: Task | None = None
) -> torch.optim.Optimizer:
    """Return AdamW or SGD; vectors and scalars (biases, normalisation weights) are not decayed.

    Fused: one pass over the memory, and the only kind that can be told by a tensor on the device to leave a step out.
    A task may have an optimizer of its own: it gets the same groups.

    Args:
        model: The network; parameters that ask for no gradient are left out.
        train: The configuration's section.
        factors: Of the learning rate, by names of parameters, as `rate_factors` gives them; None: 1 for all.
        task: The task, which may have an `optimizer`.
    """
    asking = {name: p for name, p in model.named_parameters() if p.requires_grad}
    by_kind: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    for name, p in asking.items():
        factor = 1.0 if factors is None else factors[name]
        # Sharded parameters and whole ones, of a network that is sharded, cannot be in one call of an optimizer.
        by_kind.setdefault((p.ndim < 2, isinstance(p, DTensor), factor), []).append(p)
    groups: list[dict[str, Any]] = [
        {"params": of_kind, "weight_decay": 0.0 if is_vector else train.weight_decay, "rate_factor": factor}
        for (is_vector, _, factor), of_kind in sorted(by_kind.items(), key=lambda item: item[0])
    ]
    rate = train.learning_rate
    if own := getattr(task, "optimizer", None):
        return _make_own(own, groups, rate)
    if train.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=True)
    sgd = torch.optim.SGD(groups, lr=rate, momentum=train.momentum, fused=True)
    if train.momentum:
        # SGD would allocate them in its first step and leave them unset if that one is left out. From zero, the first
        # step leaves the gradient in them, as it should.
        for parameter in asking.values():
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def _make_own(
    own: Callable[[list[dict[str, Any]], float], torch.optim.Optimizer], groups: list[dict[str, Any]], rate: float
) -> torch.optim.Optimizer:
    """Return a task's own optimizer; the rate of each of its groups is kept as a factor of `rate`."""
    optimizer = own([{**group, "lr": rate * group["rate_factor"]} for group in groups], rate)
    for group in optimizer.param_groups:
        group["rate_factor"] = float(group["lr"]) / rate
    return optimizer


@torch.no_grad()
def step_optimizer(
    optimizer: torch.optim.Optimizer, *, found_inf: torch.Tensor, divisor: torch.Tensor | None = None
) -> None:
    """Take an optimizer step, unless `found_inf` says to leave it out.

    The two tensors are given to fused optimizers as torch.amp.GradScaler does, and nothing waits for a GPU that has the
    parameters. Others have their gradients divided, and wait for what `found_inf` says.

    Args:
        optimizer: From `make_optimizer`.
        found_inf: [] float32: 1 to leave parameters and state as they are, else 0.
        divisor: [] float that gradients are divided by; None: 1.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter.device.type == "cpu" for parameter in parameters):
        # These may come from a GPU. The optimizer would copy them without waiting for the copy (torch/optim/adam.py,
        # _fused_adam: non_blocking=True), and read what was in that memory before.
        found_inf = found_inf.to("cpu")
        divisor = None if divisor is None else divisor.to("cpu")
    if divisor is not None and not _divides_by_itself(optimizer, parameters):
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for gradient in gradients:
            local_tensor(gradient).div_(divisor)
        divisor = None
    divisor = None if divisor is None else divisor.float()
    is_fused = _is_fused(optimizer)
    if is_fused and isinstance(optimizer, torch.optim.SGD) and any(isinstance(p, DTensor) for p in parameters):
        _step_sgd(optimizer, found_inf, divisor)
    elif is_fused:
        optimizer.grad_scale, optimizer.found_inf = divisor, found_inf  # type: ignore[attr-defined]
        optimizer.step()
    elif not found_inf.item():
        optimizer.step()


def _is_fused(optimizer: torch.optim.Optimizer) -> bool:
    # What torch.amp.GradScaler looks at too.
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _divides_by_itself(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> bool:
    """Whether gradients are divided in the optimizer's step: fused ones do, by a float32."""
    return _is_fused(optimizer) and all(parameter.dtype != torch.float64 for parameter in parameters)


def _step_sgd(optimizer: torch.optim.SGD, found_inf: torch.Tensor, divisor: torch.Tensor | None) -> None:
    """Take a step of SGD on the rows of this rank: torch has no fused step for sharded tensors (2.13)."""
    for group in optimizer.param_groups:
        stepped = [parameter for parameter in group["params"] if parameter.grad is not None]
        momentum = [optimizer.state[parameter].get("momentum_buffer") for parameter in stepped]
        sgd(
            [local_tensor(parameter) for parameter in stepped],
            [local_tensor(parameter.grad) for parameter in stepped],
            [None if buffer is None else local_tensor(buffer) for buffer in momentum],
            fused=True,
            grad_scale=divisor,
            found_inf=found_inf,
            **{name: group[name] for name in ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")},
        )


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], device: torch.device) -> torch.Tensor:
    """Return the norm of all gradients together, [] float32; all ranks have the same one.

    Args:
        parameters: Some of them may be sharded.
        device: Where the norm is wanted.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    if not sharded:
        return torch.nn.utils.get_total_norm(gradients)
    # A sharded gradient has a sharded norm.
    norms = [full_tensor(torch.nn.utils.get_total_norm(sharded)).to(device)]
    if whole := [gradient for gradient in gradients if not isinstance(gradient, DTensor)]:
        norms.append(torch.nn.utils.get_total_norm(whole))
    return torch.linalg.vector_norm(torch.stack(norms)) if whole else norms[0]


def clip_divisor(norm: torch.Tensor, most: float) -> torch.Tensor:
    """Return what gradients of a norm are divided by so that their norm is at most `most`: 1 where it is already."""
    return ((norm + _CLIP_EPSILON) / most).clamp(min=1.0)


def learning_rate(
    step: int, *, total_steps: int, steps_per_epoch: int, train: TrainSection, task: Task | None = None
) -> float:
    """Return the rate of optimizer step `step` (from 0): linear warmup, then what train.schedule says.

    A task may have a `schedule` of its own, which gives the factor of the peak.

    A pure function: a resume needs the step and nothing else. The cosine is that of Loshchilov and Hutter, "SGDR",
    2016, without restarts.
    """
    peak = train.learning_rate
    if own := getattr(task, "schedule", None):
        return peak * float(own(step, total_steps))
    warmup = round(train.warmup_fraction * total_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    if train.schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, total_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def rate_factors(model: nn.Module, train: TrainSection) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter, by name: train.learning_rates, else 1.

    Args:
        model: The network, which nothing has wrapped yet.
        train: The configuration's section.

    Raises:
        ConfigError: A pattern matches no parameter, or two of them match one.
    """
    names = [name for name, _ in model.named_parameters()]
    factors = dict.fromkeys(names, 1.0)
    decided: dict[str, str] = {}
    for pattern, factor in train.learning_rates.items():
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise no_match("train.learning_rates", pattern, names)
        for name in matched:
            if (other := decided.setdefault(name, pattern)) != pattern:
                raise ConfigError(
                    f"train.learning_rates: {other!r} and {pattern!r} both match {name}",
                    allowed="patterns that match different parameters, since none of two comes first",
                    todo="narrow one of them; what none matches has train.learning_rate itself",
                )
            factors[name] = factor
    return factors


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of all parameter groups, each times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = value * group["rate_factor"]


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors as `parameter/entry`, independent of the order of parameters.

    In the order of the model: sharded tensors are gathered one by one, so all ranks must name them in one order.
    """
    return {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor)
    }


def load_named_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: Group) -> None:
    """Put back what `named_state` returned, whole tensors or this rank's rows, on the device of the parameters.

    What has the shape of its parameter is sharded like it, and has its memory layout: fused optimizers go through the
    memory of all of them side by side.
    """
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if global_shape(value) == tuple(parameter.shape):
            dtype = value.tensor.dtype if isinstance(value, Rows) else value.dtype
            found = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            copy_tensor(found, value)
        else:
            assert not isinstance(value, Rows), key
            # Fused optimizers want it beside the parameter; others read it on the host in each step.
            found = value.to(parameter.device if _is_fused(optimizer) else "cpu")
        optimizer.state[parameter][entry] = found
