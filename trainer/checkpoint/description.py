"""Manifest of a checkpoint, as a training knows it when it saves, and the environment that it records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from trainer.launch.auto import BatchLayout
from trainer.model.precision import Numerics
from trainer.parallel import describe_parallel
from trainer.parallel.process_group import Rank
from trainer.tasks.optional import document_of

if TYPE_CHECKING:
    from trainer.train import Training


def describe_checkpoint(training: Training, skipped: int) -> CheckpointManifest:
    """Return the manifest of a training at this step.

    The best checkpoint, files, attempt and hash are known when it is committed.

    Args:
        training: The training.
        skipped: Optimizer steps left out.
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
        data=document_of(training.data.task),
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
    return {
        "ranks": str(rank.ranks),
        "threads_per_rank": str(torch.get_num_threads()),
        "num_workers": str(layout.num_workers),
        "parallel": describe_parallel(config.parallel, rank.ranks, numerics.precision),
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
