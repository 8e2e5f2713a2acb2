"""The confusion matrix of a classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class ConfusionMatrix(View):
    """What is taken for what, of few classes."""

    template: ClassVar[str] = "run/confusion.html.j2"
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[int, str], ...], ...]
    """By label: samples by prediction, and the class of the cell's colour."""
    is_upright: bool = False
    """Whether names above the columns stand upright, being longer than a number."""
