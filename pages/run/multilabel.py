"""Several labels for each sample on the test split: figures, every label at its threshold, and the worst samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View
from pages.run.results import Worst


@dataclass(frozen=True)
class LabelRow:
    """A label at its threshold."""

    place: int
    name: str
    positives: int
    average_precision: float | None
    threshold: float
    f1: float | None
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class MultilabelResults(View):
    """What a task of several labels shows of its evaluation."""

    template: ClassVar[str] = "run/multilabel.html.j2"
    metric: str
    """Name of the headline metric."""
    value: float | None
    f1_at_thresholds: float | None
    """Mean over labels, each at its threshold."""
    f1_macro: float | None
    """Mean over labels at one half."""
    left_out: int
    """Labels without a sample, which the means leave out."""
    exact: int
    """Samples of which all labels are right."""
    samples: int
    loss: float | None
    labels: tuple[LabelRow, ...]
    note: str
    worst: Worst | None
