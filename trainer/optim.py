"""AdamW with decay where it belongs, and a learning rate that is a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from contracts.config import TrainSection


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
    """Return the optimizer's tensors as `parameter/entry`, independent of the order of parameters."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{entry}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def load_named_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, torch.Tensor]) -> None:
    """Put back what `named_state` returned; tensors go to the device of their parameter (AdamW's step stays on CPU)."""
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        device = torch.device("cpu") if entry == "step" else parameter.device
        optimizer.state[parameter][entry] = value.to(device)
