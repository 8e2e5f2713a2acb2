"""A regression on the test split: figures, the distribution of residuals, and the samples that are farthest off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class Residuals:
    """Values less targets."""

    path: str
    """Of bars from the lowest to the highest."""
    low: float
    high: float
    highest: int
    """Samples of the highest bar."""


@dataclass(frozen=True)
class FarRow:
    """A sample that is far off."""

    words: str | None
    """The beginning of its row; None: not shown."""
    target: float
    value: float


@dataclass(frozen=True)
class RegressionResults(View):
    """What a regression shows of its evaluation."""

    template: ClassVar[str] = "run/regression.html.j2"
    target: str
    r2: float | None
    mae: float | None
    rmse: float | None
    loss: float
    residuals: Residuals | None
    worst: tuple[FarRow, ...] = ()
    left_out: str = ""
