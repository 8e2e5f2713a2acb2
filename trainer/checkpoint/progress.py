"""Checkpoint contents besides tensors: training progress, manifest and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from contracts.artifacts import CheckpointManifest, Direction, EarlyStopping, Headline
from contracts.config import EarlyStoppingSection, RunConfig
from trainer.evaluate import Evaluation
from trainer.launch.choices import BatchLayout
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.supervise.limits import judge

if TYPE_CHECKING:
    from trainer.train import Training


@dataclass(frozen=True)
class Progress:
    """Progress of a training; CheckpointManager tracks the best checkpoint."""

    position: int = 0
    metrics: dict[str, float] | None = None
    headline: Headline | None = None
    """Main metric; None before the first evaluation."""
    directions: Mapping[str, Direction] = field(default_factory=dict)
    """Directions of the task's metrics, by name."""
    evaluated_step: int = 0
    """Step of the last evaluation in this attempt."""
    evaluation_due: bool = False
    """Whether the evaluation of this step is pending because of a stop."""
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

    def with_evaluation(self, evaluation: Evaluation | None, step: int, rule: EarlyStoppingSection | None) -> Progress:
        """Return the progress after an evaluation; None: no validation split."""
        progress = replace(self, evaluated_step=step, evaluation_due=False)
        if evaluation is None:
            return replace(progress, metrics={})
        early_stopping = self.early_stopping
        if rule is not None:
            early_stopping = judge(early_stopping or EarlyStopping(), rule, evaluation)
        return replace(
            progress,
            metrics=evaluation.named("validation"),
            headline=evaluation.headline,
            directions=evaluation.directions,
            early_stopping=early_stopping,
        )


def describe_checkpoint(training: Training, skipped: int) -> CheckpointManifest:
    """Return the manifest of a training at this step, without the fields that are set at the commit.

    `skipped` is the number of skipped steps.
    """
    return CheckpointManifest(
        fingerprint=training.assignment.fingerprint,
        made_from=training.assignment.made_from,
        step=training.step,
        position=training.progress.position,
        epoch=training.epoch,
        slot_size=training.layout.slot_size,
        order=training.order,
        model=training.config.model.model_dump(mode="json"),
        task=training.config.task.model_dump(mode="json"),
        classes=training.data.manifest.classes,
        data=training.data.task.document(),
        shards_fingerprint=training.data.manifest.fingerprint,
        headline=training.progress.headline,
        directions=dict(training.progress.directions),
        metrics=training.progress.metrics or {},
        best_step=0,
        evaluated=training.stepper.evaluated_weights if training.progress.evaluated_step == training.step else None,
        evaluation_due=training.progress.evaluation_due,
        early_stopping=training.progress.early_stopping,
        parameters_sha256="",
        profile=training.profile_fingerprint,
        skipped_steps=skipped,
        spent_s=training.reporting.budget.spent_s(),
        numerics=training.numerics.document(),
        environment=training.environment(),
        initial=training.initial,
        files=[],
    )


def describe_environment(config: RunConfig, rank: Rank, layout: BatchLayout, numerics: Numerics) -> dict[str, str]:
    """Return ranks, threads, devices and versions, by name."""
    # FSDP gathers parameters in the precision of steps (docs/parallel.md).
    rounded = "" if numerics.precision == "fp32" else f", gathered in {numerics.precision}"
    return {
        "ranks": str(rank.ranks),
        "threads_per_rank": str(torch.get_num_threads()),
        "num_workers": str(layout.num_workers),
        "parallel": "ddp" if config.parallel.strategy == "ddp" else f"fsdp over {rank.ranks} ranks{rounded}",
        "device": rank.device.type,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def find_differences(manifest: CheckpointManifest, environment: dict[str, str]) -> list[str]:
    """Describe differences from a checkpoint's environment that may change the exact numbers."""
    return [
        f"{name} {manifest.environment.get(name)} -> {value}"
        for name, value in environment.items()
        if manifest.environment.get(name) != value and name != "num_workers"
    ]
