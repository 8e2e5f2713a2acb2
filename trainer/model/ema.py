"""An exponential moving average of the parameters: smoother weights for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainer.parallel import copy_full_tensor


class MovingAverage:
    """The average of a model's trainable parameters; buffers and frozen parameters are the model's own.

    It begins at the initial parameters. The decay of step t (from 0) is min(decay, (1 + t) / (10 + t)), as in
    TensorFlow's ExponentialMovingAverage with num_updates: the first parameters are soon forgotten, and a resume needs
    no counter.

    Args:
        model: The network, as it trains.
        decay: Share that the average keeps of itself in a step, in the long run.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters: list[torch.Tensor] = [parameter for _, parameter in named]
        self._average = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self, step: int, left_out: torch.Tensor) -> None:
        """Take in the parameters after optimizer step `step` (from 0).

        Args:
            step: The step just taken.
            left_out: [] float32: 1 if the step was left out, and the average stays as it is; else 0.
        """
        weight = (1 - min(self._decay, (1 + step) / (10 + step))) * (1 - left_out)
        change = list(torch._foreach_sub(self._parameters, self._average))
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._average, change)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the average inside the block, and its parameters back afterwards, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # One by one: a second copy of all parameters at once might not fit.
        for parameter, average in zip(self._parameters, self._average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Give the model the average for good."""
        for parameter, average in zip(self._parameters, self._average, strict=True):
            parameter.copy_(average)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the average by the parameters' names."""
        return dict(zip(self._names, self._average, strict=True))

    @torch.no_grad()
    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned, whole tensors all."""
        for name, average in self.state().items():
            copy_full_tensor(average, state[name])
