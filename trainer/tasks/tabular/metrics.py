"""Metrics of a regression, equal to scikit-learn's: sums in float64, which are added up over ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torchmetrics import Metric


class MeanError(Metric):
    """Mean absolute error, or the root of the mean squared error, in the unit of the target.

    Args:
        score: Which of them.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: torch.Tensor
    count: torch.Tensor

    def __init__(self, score: Literal["mae", "rmse"]) -> None:
        super().__init__(sync_on_compute=False)
        self._score = score
        for name in ("total", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor, targets: torch.Tensor) -> None:
        """Add up a batch: values [B] and targets [B], float64."""
        apart = values - targets
        self.total += (apart.abs() if self._score == "mae" else apart.square()).sum()
        self.count += len(apart)

    def compute(self) -> torch.Tensor:
        """Return the error, [] float64."""
        mean = self.total / self.count
        return mean if self._score == "mae" else mean.sqrt()


class R2(Metric):
    """Share of the target's variance that values explain: 1 - squared errors / squared distances from the mean.

    As scikit-learn has it, where all targets are alike it is 1 for values that are right, and 0 for others. Squares are
    of distances from a number near the mean: of targets far from 0, differences of large sums would be left.

    Args:
        near: A number near the mean of the targets.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    errors: torch.Tensor
    distances: torch.Tensor
    squares: torch.Tensor
    count: torch.Tensor

    def __init__(self, near: float) -> None:
        super().__init__(sync_on_compute=False)
        self._near = near
        for name in ("errors", "distances", "squares", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor, targets: torch.Tensor) -> None:
        """Add up a batch: values [B] and targets [B], float64."""
        far = targets - self._near
        self.errors += (values - targets).square().sum()
        self.distances += far.sum()
        self.squares += far.square().sum()
        self.count += len(far)

    def compute(self) -> torch.Tensor:
        """Return the share, [] float64; not a number for less than two samples, which have no variance."""
        if self.count < 2:
            return self.errors.new_tensor(torch.nan)
        spread = self.squares - self.distances.square() / self.count
        # What rounding leaves of equal targets is no variance.
        if spread <= torch.finfo(torch.float64).eps * self.count * self.squares:
            return (self.errors == 0).to(self.errors.dtype)
        return 1 - self.errors / spread


def make_metrics(target_mean: float) -> dict[str, Metric]:
    """Return the metrics by name.

    Args:
        target_mean: Of the training split.
    """
    return {"r2": R2(target_mean), "mae": MeanError("mae"), "rmse": MeanError("rmse")}
