"""A classification on the test split: figures, confusion, ROC curves, each class, and the worst samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.chart import Plot
from pages.rendering import View
from pages.run.results import Worst


@dataclass(frozen=True)
class ConfusionMatrix:
    """What is taken for what, of few classes."""

    names: tuple[str, ...]
    rows: tuple[tuple[tuple[int, str], ...], ...]
    """By label: samples by prediction, and the class of the cell's colour."""

    @property
    def is_upright(self) -> bool:
        """Whether names above the columns stand upright, being longer than a number."""
        return max(map(len, self.names), default=0) > 3


@dataclass(frozen=True)
class ConfusedPair:
    """Samples of one class that were taken for another."""

    label: str
    predicted: str
    figure: str
    """Places of both."""
    samples: int
    share: float | None
    """Of the label's samples."""


@dataclass(frozen=True)
class ConfusedPairs:
    """The pairs of many classes that are confused most."""

    classes: int
    pairs: tuple[ConfusedPair, ...]
    left_out: str


@dataclass(frozen=True)
class Roc:
    """How well probabilities tell classes apart."""

    plot: Plot
    areas: tuple[tuple[str, float], ...]
    """Of each line: its name, and the area under it."""
    note: str
    """Which classes are drawn; empty: all."""


@dataclass(frozen=True)
class OutcomeRow:
    """What became of the samples of a class."""

    place: int
    name: str
    samples: int
    right: int
    recall: float | None
    recall_interval: tuple[float, float] | None
    """95 %."""
    precision: float | None
    f1: float | None
    roc_area: float | None
    validation: tuple[float | None, float | None] | None = None
    """Recall and F1 on the validation split; None: not measured."""


@dataclass(frozen=True)
class ClassificationResults(View):
    """What a classification shows of its evaluation."""

    template: ClassVar[str] = "run/classification.html.j2"
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    """95 %."""
    wrong: int
    samples: int
    f1: float | None
    """Mean over classes."""
    recall: float | None
    """Mean over classes."""
    roc_area: float | None
    """Mean over classes."""
    loss: float
    matrix: ConfusionMatrix | None
    pairs: ConfusedPairs | None
    confusion_left_out: int
    """Samples in cells that the evaluation has left out."""
    outcomes: tuple[OutcomeRow, ...]
    outcomes_note: str
    roc: Roc | None
    worst: Worst | None
    validation_f1: float | None = None
    """Mean over classes, on the validation split."""
    side_by_side: bool = False
    """Whether the matrix leaves room beside it."""
