"""AdamW with decay where it belongs, and a learning rate that is a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from contracts.config import TrainSection
from trainer.parallel import fill


def make_optimizer(model: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """Return AdamW; vectors and scalars (biases, normalisation weights) are not decayed."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    exempt = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": train.weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=train.learning_rate)


def learning_rate(step: int, *, total_steps: int, train: TrainSection) -> float:
    """Return the rate of optimizer step `step` (from 0): linear warmup, then a cosine to 0.

    A pure function: a resume needs the step and nothing else (Loshchilov and Hutter, "SGDR", 2016, without restarts).
    """
    warmup = round(train.warmup_fraction * total_steps)
    if step < warmup:
        return train.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    return train.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


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


def load_named_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, torch.Tensor]) -> None:
    """Put back what `named_state` returned, whole tensors all.

    What has the shape of its parameter is placed and sharded like it; anything else is a scalar that AdamW counts in,
    which stays on the CPU.
    """
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if entry == "step":
            optimizer.state[parameter][entry] = value.to("cpu")
        else:
            optimizer.state[parameter][entry] = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
            fill(optimizer.state[parameter][entry], value)
