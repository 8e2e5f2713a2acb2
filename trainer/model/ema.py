"""An exponential moving average of the parameters: smoother weights for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainer.checkpoint.loading import Group
from trainer.parallel.spread import copy_tensor, local_tensor


class MovingAverage:
    """The average of a model's trainable parameters; buffers and frozen parameters are the model's own.

    It starts at the initial parameters. The decay of step t (from 0) is min(decay, (1 + t) / (10 + t)), as in
    TensorFlow's ExponentialMovingAverage with num_updates: the first parameters are soon forgotten, and a resume needs
    no counter.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._average = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int, skipped: torch.Tensor) -> None:
        """Update the average after optimizer step `step` (from 0), unless `skipped`, [] float32, is 1."""
        weight = (1 - min(self._decay, (1 + step) / (10 + step))) * (1 - skipped)
        for name, average in self._average.items():
            # One by one and in place, to save memory.
            local_tensor(average).lerp_(local_tensor(self._parameters[name]), weight.to(average))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the average into the model inside the block, and the exact parameters back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, average in self._average.items():
            parameter = self._parameters[name].detach().clone()
            self._parameters[name].copy_(average)
            average.copy_(parameter)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Give the model the average for good."""
        for name, average in self._average.items():
            self._parameters[name].copy_(average)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the average by the parameters' names."""
        return dict(self._average)

    @torch.no_grad()
    def load(self, state: Group) -> None:
        """Put back what `state` returned."""
        for name, average in self._average.items():
            copy_tensor(average, state[name])
