"""What tasks show of an evaluation in the summary of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


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
    left_out: int
    """Labels without a sample, which are not among them."""
