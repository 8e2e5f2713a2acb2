"""Decides on the device whether a step is taken: not where the norm of the reduced gradients is not finite.

All ranks see the same norm, so all decide alike, and nothing waits for the device: the counts are read where training
reads its loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from contracts.errors import DataError

# Steps left out in a row after which nothing is learnt any more. A loss scale comes down from its start to 1 in 16.
MOST_SKIPS_IN_A_ROW = 100


@dataclass(frozen=True)
class Findings:
    """What was seen since the start of training."""

    skipped: int
    """Steps left out."""
    in_a_row: int
    """Of these the newest, without a step between."""
    fatal_step: int
    """The first step (from 1) whose gradients must end training; 0: none."""
    norm: float
    """Norm of the newest gradient, before clipping."""


class GradientGuard:
    """Counts on the device.

    Args:
        device: Where the gradients are.
    """

    def __init__(self, device: torch.device) -> None:
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._fatal_step = torch.zeros((), dtype=torch.int64, device=device)
        self._norm = torch.zeros((), device=device)

    def judge(self, norm: torch.Tensor, step: int, scale: torch.Tensor | None) -> torch.Tensor:
        """Return 1.0 if optimizer step `step` (from 0) must be left out, else 0.0; a tensor on the device.

        Args:
            norm: [] Norm of the gradients over all ranks, before clipping, the loss scale divided out.
            step: The step.
            scale: The loss scale. While it is above 1 an overflow is what it is there for, and ends nothing.
        """
        bad = ~torch.isfinite(norm)
        self._norm.copy_(norm)
        self._skipped += bad
        self._in_a_row.copy_(torch.where(bad, self._in_a_row + 1, 0))
        fatal = (self._in_a_row >= MOST_SKIPS_IN_A_ROW) | (bad if scale is None else bad & (scale <= 1))
        first = fatal & (self._fatal_step == 0)
        self._fatal_step.copy_(torch.where(first, step + 1, self._fatal_step))
        return bad.float()

    def tensors(self) -> torch.Tensor:
        """Return all counts as one tensor [4] float64, to be read at once by `read`."""
        counts = torch.stack([self._skipped, self._in_a_row, self._fatal_step]).double()
        return torch.cat([counts, self._norm.double()[None]])

    def read(self, values: list[float]) -> Findings:
        """Return what `tensors` says.

        Raises:
            DataError: Training must end here.
        """
        found = Findings(int(values[0]), int(values[1]), int(values[2]), values[3])
        if found.fatal_step and found.in_a_row < MOST_SKIPS_IN_A_ROW:
            raise DataError(
                f"the gradients were not finite at step {found.fatal_step}",
                allowed="finite numbers",
                todo="lower train.learning_rate, set train.clip_grad_norm, or look at the data",
            )
        if found.fatal_step:
            raise DataError(
                f"gradients were not finite in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {found.fatal_step}",
                allowed="finite numbers in most steps",
                todo="lower train.learning_rate, or look at the data",
            )
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint keeps."""
        return {"skipped": self._skipped, "in_a_row": self._in_a_row}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` returned."""
        self._skipped.copy_(state["skipped"])
        self._in_a_row.copy_(state["in_a_row"])
