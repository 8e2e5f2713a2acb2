"""How far training is: with the tensors, everything that a resume needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.artifacts import CheckpointManifest
from trainer.checkpoint.retention import score
from trainer.evaluate import Evaluation


@dataclass(frozen=True)
class Progress:
    """How far training is, and its best so far: with the tensors, everything that a resume needs."""

    position: int = 0
    metrics: dict[str, float] | None = None
    best_step: int = 0
    best: Evaluation | None = None
    evaluated_step: int = 0
    """Step of the newest evaluation of this attempt."""
    evaluation_due: bool = False
    """The evaluation that belongs here was not made: ranks were told to stop."""

    @classmethod
    def of(cls, manifest: CheckpointManifest) -> Progress:
        """Return the progress that a checkpoint records."""
        accuracy, loss = manifest.best_validation_accuracy, manifest.best_validation_loss
        best = None if accuracy is None or loss is None else Evaluation(0, accuracy, loss)
        return cls(
            manifest.position, manifest.metrics, manifest.best_step, best, evaluation_due=manifest.evaluation_due
        )

    def with_evaluation(self, found: Evaluation, step: int, *, best_metric: str) -> Progress:
        """Take in an evaluation; of equal ones the earlier stays the best."""
        metrics = {"validation_accuracy": found.accuracy, "validation_loss": found.loss}
        if self.best is None or score(found.accuracy, found.loss, best_metric) > score(
            self.best.accuracy, self.best.loss, best_metric
        ):
            self = replace(self, best=found, best_step=step)
        return replace(self, metrics=metrics, evaluated_step=step, evaluation_due=False)
