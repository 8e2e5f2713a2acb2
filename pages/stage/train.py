"""The summary of a training: what it learned, where its time went, and what preemptions have cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import GoodputRecord
from pages.markdown import Markdown
from pages.rendering import View
from pages.stage import First


@dataclass(frozen=True)
class Metric:
    """A metric by its name."""

    name: str
    value: float
    unit: str
    """A filter of pages/quantities.py."""


@dataclass(frozen=True)
class Money:
    """What the machines of a training cost: an estimate."""

    cost: str
    """A range, with its unit."""
    source: str
    """Of the prices."""
    on_demand: str
    """What the same hours cost on demand; empty: not known."""


@dataclass(frozen=True)
class TrainSummary(View):
    """The summary of a finished training."""

    template: ClassVar[str] = "stage/train.md.j2"
    headline: tuple[tuple[str, str, str], ...]
    """Title, value and note; none: the run cannot be read."""
    metrics: First[Metric]
    steps: int
    epochs: int
    best_step: int
    skipped_steps: int
    started_with: str
    """What the weights were before the first step; empty: random."""
    ended_by: str
    """Configuration key that ended it; empty: it had all its epochs."""
    warnings: First[str]
    account: GoodputRecord | None
    parts: tuple[tuple[str, float], ...]
    """Of the account: what, and seconds."""
    no_account: str
    """Why there is none."""
    money: Money | None
    task: Markdown
    """What the task shows of the evaluation."""
    no_evaluation: str
    """Why nothing is known of it; empty: it is known."""
    numerics: First[tuple[str, str]]
    """What it was computed in."""
