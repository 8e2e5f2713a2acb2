"""How far training is: with the tensors, everything that a resume needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.artifacts import CheckpointManifest
from trainer.evaluate import Evaluation


@dataclass(frozen=True)
class Progress:
    """How far training is; its best checkpoint so far is known to what commits them (trainer/checkpoint/commit.py)."""

    position: int = 0
    metrics: dict[str, float] | None = None
    evaluated_step: int = 0
    """Step of the newest evaluation of this attempt."""
    evaluation_due: bool = False
    """The evaluation that belongs here was not made: ranks were told to stop."""

    @classmethod
    def of(cls, manifest: CheckpointManifest) -> Progress:
        """Return the progress that a checkpoint records."""
        return cls(manifest.position, manifest.metrics, evaluation_due=manifest.evaluation_due)

    def with_evaluation(self, found: Evaluation | None, step: int) -> Progress:
        """Take in an evaluation; None: there is no validation split."""
        metrics = {} if found is None else {"validation_accuracy": found.accuracy, "validation_loss": found.loss}
        return replace(self, metrics=metrics, evaluated_step=step, evaluation_due=False)
