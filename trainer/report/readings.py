"""What steps leave on the device, summed over ranks and read one step later, when the device has long had it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.model.guard import Findings, GradientGuard
from trainer.parallel.process_group import sum_over_ranks


@dataclass(frozen=True)
class Reading:
    """What was found up to a step, the same on all ranks."""

    step: int
    """Optimizer steps taken."""
    rate: float
    """Learning rate of the newest."""
    loss: float | None
    """Mean loss since the last reading, of steps that were taken; None: nothing was counted in them."""
    found: Findings
    loss_scale: float | None
    sums: list[float]
    """What `send` was given, added over ranks."""


class Readings:
    """Adds up on the device what a rank finds between two readings.

    Args:
        device: Where losses are.
        guard: Its counts are read along.
    """

    def __init__(self, device: torch.device, guard: GradientGuard) -> None:
        self._device, self._guard = device, guard
        self._step_loss = torch.zeros((), device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._pending: tuple[int, float, bool, torch.Tensor, torch.cuda.Event | None] | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Take in the sum of the loss of a slot."""
        self._step_loss += loss

    def end_step(self, left_out: torch.Tensor, count: torch.Tensor | int) -> None:
        """Take in a step: the loss of one that was left out is no number to go on with.

        Args:
            left_out: [] 1.0 if it was, else 0.0.
            count: What the loss of its global batch is divided by, the same on all ranks.
        """
        taken = left_out == 0
        self._loss += torch.where(taken, self._step_loss, 0.0)
        self._count += torch.where(taken, count, 0)
        self._step_loss.zero_()

    def send(self, step: int, rate: float, own: list[float], scale: torch.Tensor | None) -> None:
        """Start to add over ranks and to copy to the host; every rank must call this at the same step.

        Args:
            step: Optimizer steps taken.
            rate: Learning rate of the newest.
            own: Of this rank, to be added over ranks.
            scale: Loss scale, if there is one.
        """
        sums = torch.cat([self._loss[None], torch.tensor(own, dtype=torch.float64).to(self._device, non_blocking=True)])
        sum_over_ranks(sums)
        rest = [self._count if scale is None else scale.double(), self._count]
        values = torch.cat([torch.stack(rest), self._guard.tensors(), sums])
        self._loss.zero_()
        self._count.zero_()
        arrived = None
        if self._device.type == "cuda":
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._pending = (step, rate, scale is not None, values, arrived)

    def read(self) -> Reading | None:
        """Return what was sent last, and wait for it; None if there is nothing to be read.

        Raises:
            DataError: Gradients were such that training must end (trainer/model/guard.py).
        """
        if self._pending is None:
            return None
        step, rate, scaled, values, arrived = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        scale, count, *rest = values.tolist()
        found, loss, sums = self._guard.read(rest[:4]), rest[4], rest[5:]
        return Reading(step, rate, loss / count if count else None, found, scale if scaled else None, sums)
