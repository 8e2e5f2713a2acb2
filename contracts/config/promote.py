"""Section `promote`: when the model of a run takes the place of the one in production."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from contracts.config.base import Fraction, NotBool, Section, refusal

_AtLeastZero = Annotated[float, Field(ge=0), NotBool]
_CLASS_METRICS = ("accuracy", "f1_macro", "recall_macro")

METRICS: dict[str, tuple[str, ...]] = {
    "image_classification": _CLASS_METRICS,
    "text_classification": _CLASS_METRICS,
    "tabular_classification": _CLASS_METRICS,
    "tabular_regression": ("r2", "mae", "rmse"),
}
"""What two models of a task of the tool are compared by; the first one is the default. Others are not judged."""
ERRORS = frozenset({"mae", "rmse"})
"""Metrics in the unit of the target, of which a lower value is better."""


class PromoteSection(Section):
    """The judgement of a new model beside the one in production (docs/retraining.md). It changes no export."""

    judge: bool = False
    """Whether a run compares its export with the model in production, on the same samples of the test split, and
    promotes or keeps; false: production is moved by hand alone."""
    metric: str = ""
    """What is compared; unset: accuracy, or r2 of a regression. Also f1_macro, recall_macro; mae, rmse. Of an own task
    any of its metrics or loss; unset: its headline."""
    least_gain: _AtLeastZero = 0.0
    """How much better the new model must be; 0: it need not be."""
    largest_loss: _AtLeastZero = 0.01
    """How much worse it may be at the worse end of the 95 % interval. Where a lower value is better both are shares of
    production's value."""
    class_floor: Fraction = 0.1
    """Largest loss of recall of a single class that is let pass, if chance does not explain it."""
    least_samples: Annotated[int, Field(strict=True, ge=1)] = 20
    """Classes with fewer test samples are not judged by themselves; a test split with fewer is not judged at all."""
    max_latency_ms: Annotated[float, Field(gt=0), NotBool] | None = None
    """Largest median time of a batch of 1 in the export's bench, milliseconds; it needs `export.bench`."""
    require_proven: bool = True
    """Whether an unproven export (export.allow_unproven) is never promoted by a run."""

    def check(self, task: str, *, bench: bool) -> None:
        """Refuse what cannot be judged.

        Args:
            task: task.name.
            bench: export.bench.

        Raises:
            PydanticCustomError: It cannot.
        """
        is_own, known = ":" in task, METRICS.get(task, ())
        if self.judge and not known and not is_own:
            raise refusal(
                f"promote.judge with task {task}",
                allowed=f"one of the tasks {', '.join(METRICS)}, or one of your own code",
                todo="leave promote.judge out, and promote by hand",
            )
        if self.metric and self.metric not in known and not is_own:
            raise refusal(
                f"promote.metric = {self.metric!r}, which task {task} does not have",
                allowed=f"one of {', '.join(known)}" if known else "no metric: this task is not judged",
                todo="choose one of them, or leave promote.metric out",
            )
        if self.judge and self.max_latency_ms is not None and not bench:
            raise refusal(
                "promote.max_latency_ms with export.bench: false",
                allowed="a limit of what is measured",
                todo="set export.bench to true, or leave promote.max_latency_ms out",
            )

    def metric_of(self, task: str) -> str:
        """Return the metric that models of a task of the tool are compared by."""
        return self.metric or METRICS[task][0]
