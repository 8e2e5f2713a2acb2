"""An exponential moving average of the parameters: smoother weights for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainer.checkpoint.tensors import Group
from trainer.parallel import copy_tensor, local_tensor

# Elements whose difference from the average is held at a time: 64 MiB, far more than a kernel needs to be worth its
# launch, and little beside a network for which memory is short.
_CHUNK_ELEMENTS = 1 << 24


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
        for parameters, average in self._chunks():
            change = list(torch._foreach_sub(parameters, average))
            torch._foreach_mul_(change, weight.to(change[0].device))
            torch._foreach_add_(average, change)

    def _chunks(self) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """Yield parameters and their average, a bounded number of elements at a time: the difference takes memory."""
        parameters: list[torch.Tensor] = []
        average: list[torch.Tensor] = []
        elements = 0
        for parameter, its in zip(self._parameters, self._average, strict=True):
            own, mean = local_tensor(parameter), local_tensor(its)
            rows = max(1, _CHUNK_ELEMENTS // max(1, own[:1].numel())) if own.ndim else 1
            pieces = zip(torch.split(own, rows), torch.split(mean, rows), strict=True) if own.ndim else [(own, mean)]
            for piece, mean_piece in pieces:
                full = elements + piece.numel() > _CHUNK_ELEMENTS
                if parameters and (full or piece.device != parameters[0].device):
                    yield parameters, average
                    parameters, average, elements = [], [], 0
                parameters.append(piece)
                average.append(mean_piece)
                elements += piece.numel()
        if parameters:
            yield parameters, average

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
    def load(self, state: Group) -> None:
        """Put back what `state` returned, whole tensors or this rank's rows."""
        for name, average in zip(self._names, self._average, strict=True):
            copy_tensor(average, state[name])
