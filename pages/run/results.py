"""What a trained network does on the test split: its metrics, pictures, and what its task shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.links import Link
from pages.markup import NO_MARKUP, Html
from pages.rendering import View
from pages.run.picture import Picture


@dataclass(frozen=True)
class MetricRow:
    """A metric of the best checkpoint on both splits."""

    name: str
    unit: str
    validation: float | None
    test: float | None
    other: float | None = None
    """Of a metric that is of neither split."""


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint of a training."""

    step: int
    steps: int | None
    """That the training had; None: not known."""
    epoch: int
    weights: str
    """Which were evaluated; empty: not known."""
    ended_by: str
    started_with: str
    """What the weights were before the first step."""
    metrics: tuple[MetricRow, ...]


@dataclass(frozen=True)
class ResultsSection(View):
    """The section on the trained network."""

    template: ClassVar[str] = "run/results.html.j2"
    title: str
    absent: str = ""
    """Why there is no evaluation; empty: there is one."""
    task: Html = NO_MARKUP
    """What the task shows."""
    pictures: tuple[tuple[str, Picture], ...] = ()
    """Label and picture."""
    left_out: str = ""
    checkpoint: BestCheckpoint | None = None


@dataclass(frozen=True)
class MetricTiles(View):
    """Figures of a task that has no page of its own."""

    template: ClassVar[str] = "run/metrics.html.j2"
    samples: int
    loss: float
    metrics: tuple[tuple[str, str, float, str], ...]
    """Title, name, value and unit; the headline first."""


@dataclass(frozen=True)
class WorstSample:
    """A sample that the network got wrong, or nearly so."""

    picture: Picture | None
    words: str | None
    """Of a sample without an image; None: not shown."""
    lines: tuple[tuple[str, str, str, float | None], ...]
    """Word before, text, kind (good, bad or none) and probability."""
    key: str
    file: Link | None = None
    """In the source; None: not known, or it has none of its own."""


@dataclass(frozen=True)
class Worst:
    """The samples that the network got worst."""

    title: str
    note: str
    samples: tuple[WorstSample, ...]
