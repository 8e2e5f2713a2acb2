"""Losses and counts of steps, summed over ranks and read one step later, when the device has long had them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.model.numerics import Findings, GradientGuard


@dataclass(frozen=True)
class Reading:
    """Results up to a step, the same on all ranks."""

    step: int
    """Optimizer steps taken."""
    rate: float
    """Learning rate of the newest."""
    loss: float | None
    """Mean loss since the last reading, of steps that were taken; None: nothing was counted in them."""
    found: Findings
    loss_scale: float | None
    sums: list[float]
    """Values given to `send`, added over ranks."""


class Readings:
    """Adds up losses and counts of a rank on the device between two readings; the guard's counts are read along."""

    def __init__(self, device: torch.device, guard: GradientGuard) -> None:
        self._device, self._guard = device, guard
        self._step_loss = torch.zeros((), device=device)
        # Loss and count since the last reading.
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._pending: tuple[int, float, bool, torch.Tensor, torch.cuda.Event | None] | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Take in the sum of the loss of a slot."""
        self._step_loss += loss

    def end_step(self, left_out: torch.Tensor, count: torch.Tensor | int) -> None:
        """Take in a step, unless it was left out ([] 1.0, else 0.0); `count` is the denominator of its loss."""
        taken = left_out == 0
        self._sums[0] += torch.where(taken, self._step_loss, 0.0)
        self._sums[1] += torch.where(taken, count, 0)
        self._step_loss.zero_()

    def send(self, step: int, rate: float, own: list[float], scale: torch.Tensor | None) -> None:
        """Start to add over ranks and to copy to the host; every rank must call this at the same step.

        `own` are values of this rank, to be added over ranks too.
        """
        loss, count = self._sums
        sums = torch.cat([loss[None], torch.tensor(own, dtype=torch.float64).to(self._device, non_blocking=True)])
        dist.all_reduce(sums)
        values = torch.cat(
            [torch.stack([count if scale is None else scale.double(), count]), self._guard.tensors(), sums]
        )
        self._sums.zero_()
        arrived = None
        if self._device.type == "cuda":
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._pending = (step, rate, scale is not None, values, arrived)

    def read(self) -> Reading | None:
        """Return what was sent last, and wait for it; None if there is nothing to be read.

        Raises:
            DataError: Gradients were such that training must end (trainer/model/numerics.py).
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
