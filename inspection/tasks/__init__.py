"""Pages of tasks: what is shown of a task beyond its metrics, a folder per task.

No other part of inspection knows what a task's details mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.artifacts import Document, EvaluationReport
from contracts.artifacts.classification import TASKS as CLASSIFICATIONS
from contracts.artifacts.multilabel import TASKS as SEVERAL_LABELS
from pages.markup import Html
from pages.quantities import exact_percent, metric_number

if TYPE_CHECKING:
    from inspection.page.subject import Subject
    from inspection.tasks.pictures import NamedSamples


@dataclass(frozen=True)
class TaskPages:
    """What is shown of a task."""

    shares: frozenset[str]
    """Metrics that are shares of one, and are shown in percent."""
    proportions: frozenset[str]
    """Metrics that are the share of right samples: each sample is one yes or no, so that they have an interval."""
    worst: Callable[[NamedSamples], Sequence[Document]]
    """Reads the samples that the network got worst out of the shards."""
    results: Callable[[Subject, EvaluationReport], Html]
    """Part of section Results, before the metrics of the best checkpoint."""
    classification: Callable[[EvaluationReport], dict[str, Any]] | None
    """Metadata of Vertex AI's artifact of a classification; None: the task is none, as it knows them."""


def find_pages(task: str) -> TaskPages | None:
    """Return the pages of a task by its name; None: it has none of its own."""
    if task in CLASSIFICATIONS:
        from inspection.tasks.classification.pages import PAGES

        return PAGES
    if task in SEVERAL_LABELS:
        from inspection.tasks.multilabel.pages import PAGES

        return PAGES
    return None


def is_share(task: str, name: str) -> bool:
    """Whether a value is shown in percent.

    Args:
        task: Name of the task.
        name: Of the metric, after `validation_`, `test_` or the like where there is one.
    """
    pages = find_pages(task)
    return pages is not None and any(
        name == share or name.endswith((f"_{share}", f"/{share}")) for share in pages.shares
    )


def is_proportion(task: str, name: str) -> bool:
    """Whether a metric is the share of right samples, by its own name."""
    pages = find_pages(task)
    return pages is not None and name in pages.proportions


def show_metric(task: str, name: str) -> Callable[[float], str]:
    """Return what shows a metric as text: in percent where its task says that it is a share, else as a number."""
    return exact_percent if is_share(task, name) else metric_number
