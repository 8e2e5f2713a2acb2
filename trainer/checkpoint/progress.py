"""How far training is: with the tensors, everything that a resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from contracts.artifacts import CheckpointManifest, Direction, EarlyStopping, Headline
from contracts.config import EarlyStoppingSection
from trainer.evaluate import Evaluation
from trainer.supervise.early_stopping import judge


@dataclass(frozen=True)
class Progress:
    """How far training is; its best checkpoint so far is known to what commits them (trainer/checkpoint/commit.py)."""

    position: int = 0
    metrics: dict[str, float] | None = None
    headline: Headline | None = None
    """Of the task; None before the first evaluation."""
    directions: Mapping[str, Direction] = field(default_factory=dict)
    """Of the task's metrics, by name."""
    evaluated_step: int = 0
    """Step of the newest evaluation of this attempt."""
    evaluation_due: bool = False
    """The evaluation that belongs here was not made: ranks were told to stop."""
    early_stopping: EarlyStopping | None = None
    """None without train.early_stopping, and before the first evaluation."""

    @classmethod
    def of(cls, manifest: CheckpointManifest) -> Progress:
        """Return the progress that a checkpoint records."""
        return cls(
            manifest.position,
            manifest.metrics,
            manifest.headline,
            manifest.directions,
            evaluation_due=manifest.evaluation_due,
            early_stopping=manifest.early_stopping,
        )

    def with_evaluation(self, found: Evaluation | None, step: int, rule: EarlyStoppingSection | None) -> Progress:
        """Take in an evaluation; None: there is no validation split."""
        made = replace(self, evaluated_step=step, evaluation_due=False)
        if found is None:
            return replace(made, metrics={})
        seen = self.early_stopping
        if rule is not None:
            seen = judge(seen or EarlyStopping(), rule, found)
        return replace(
            made,
            metrics=found.named("validation"),
            headline=found.headline,
            directions=found.directions,
            early_stopping=seen,
        )
