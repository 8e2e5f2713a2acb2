"""What tasks show of an evaluation in the summary of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class HardClass:
    """A class that is hard to tell."""

    name: str
    samples: int
    recall: float
    precision: float | None
    """None: it was never predicted."""
    roc_area: float | None


@dataclass(frozen=True)
class ClassificationSummary(View):
    """The hardest classes, and the most frequent mistakes."""

    template: ClassVar[str] = "stage/classification.md.j2"
    hardest: tuple[HardClass, ...]
    mistakes: tuple[tuple[str, str, int], ...]
    """Label, what it was taken for, and samples."""


@dataclass(frozen=True)
class HardLabel:
    """A label that is hard to tell, at its threshold."""

    name: str
    samples: int
    average_precision: float
    threshold: float
    f1: float | None
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class MultilabelSummary(View):
    """The hardest labels."""

    template: ClassVar[str] = "stage/multilabel.md.j2"
    hardest: tuple[HardLabel, ...]


@dataclass(frozen=True)
class RegressionSummary(View):
    """The samples that are farthest off."""

    template: ClassVar[str] = "stage/regression.md.j2"
    farthest: tuple[tuple[str, float, float], ...]
    """Sample, target and prediction."""
