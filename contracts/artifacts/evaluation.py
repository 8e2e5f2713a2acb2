"""The document evaluation.json: how the best checkpoint did on the test split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from contracts.artifacts.document import Contract, Document

EVALUATION_NAME = "evaluation.json"
PREDICTIONS_NAME = "test-predictions.parquet"
"""Beside evaluation.json: key, path, label, answer and probability of each sample of the test split."""
LOSS = "loss"
"""Name that stands for the loss among the metrics; no metric has it."""

Direction = Literal["max", "min"]
"""Which values of a metric are better: higher ones, or lower ones."""


class Headline(Document):
    """The metric that tells how good a model is."""

    metric: str
    """Its name, or `loss`."""
    direction: Direction

    def value(self, metrics: Mapping[str, float], split: str) -> float | None:
        """Return its value on a split out of a checkpoint's metrics; None where that was not measured."""
        return metrics.get(f"{split}_{self.metric}")


@dataclass(frozen=True)
class Baseline:
    """Headline metric of a model that ignores its input."""

    description: str
    """For example: always "cat"."""
    value: float


class EvaluationReport(Contract):
    """The best checkpoint of a training on the test split."""

    kind: Literal["evaluation"] = "evaluation"
    step: int
    """Of the checkpoint."""
    weights: Literal["model", "ema"]
    """Which weights of the checkpoint were evaluated: those trained, or their moving average (train.ema_decay)."""
    parameters_sha256: str
    """Of these weights and the buffers."""
    shards_fingerprint: str
    split: Literal["test"] = "test"
    samples: int
    """Each counts once."""
    task: str
    """Name of the task (task.name)."""
    headline: Headline
    metrics: dict[str, float]
    """Metrics of the task by name, without the loss."""
    loss: float | None
    """Sum of the task's loss over the sum of its counts; null: it came to no finite number."""
    baseline: Baseline | None = None
    """None: the task has nothing to compare its headline with."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Result of the task's `report`; only pages of the task read it."""

    def value(self, metric: str) -> float | None:
        """Return a metric, or the loss, by its name; None: there is none of that name."""
        return self.loss if metric == LOSS else self.metrics.get(metric)
