"""What a checkpoint records beside tensors: how far training is, its manifest, and the environment."""

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
    """How far training is; its best checkpoint so far is known to what commits them (trainer/checkpoint/manager.py)."""

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


def describe_checkpoint(training: Training, skipped: int) -> CheckpointManifest:
    """Return the manifest of a training at this step.

    The best checkpoint, files, attempt and hash are known when it is committed; `skipped` steps were left out so far.
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
    # Parameters are gathered in the precision of steps (docs/parallel.md).
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
    """Return in words what differs from a checkpoint's environment and may change bits."""
    return [
        f"{name} {manifest.environment.get(name)} -> {value}"
        for name, value in environment.items()
        if manifest.environment.get(name) != value and name != "num_workers"
    ]
