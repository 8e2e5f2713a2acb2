"""Checkpoint contents besides tensors: manifest and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from contracts.artifacts import CheckpointManifest, EarlyStopping
from contracts.config import EarlyStoppingSection, RunConfig
from trainer.evaluate import Evaluation
from trainer.launch.choices import BatchLayout
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.supervise.limits import judge

if TYPE_CHECKING:
    from trainer.train import Training

# What the last evaluation left.
_OF_EVALUATION = ("metrics", "headline", "directions", "evaluation_due", "early_stopping")


def make_manifest(training: Training, checkpoint: CheckpointManifest | None) -> CheckpointManifest:
    """Return the manifest of a training at this step, with the evaluation that the last checkpoint records.

    Fields of the moment are set when it is saved, others at the commit.
    """
    recorded: dict[str, Any] = {"metrics": {}}
    if checkpoint is not None:
        recorded = {name: getattr(checkpoint, name) for name in _OF_EVALUATION}
    return CheckpointManifest(
        fingerprint=training.assignment.fingerprint,
        made_from=training.assignment.made_from,
        step=training.step,
        position=training.position,
        epoch=training.epoch,
        slot_size=training.layout.slot_size,
        order=training.order,
        model=training.config.model.model_dump(mode="json"),
        task=training.config.task.model_dump(mode="json"),
        classes=training.data.manifest.classes,
        data=training.data.task.document(),
        shards_fingerprint=training.data.manifest.fingerprint,
        best_step=0,
        parameters_sha256="",
        profile=training.profile_fingerprint,
        numerics=training.numerics.document(),
        environment=training.environment(),
        initial=training.initial,
        files=[],
        **recorded,
    )


def with_evaluation(
    manifest: CheckpointManifest, evaluation: Evaluation | None, rule: EarlyStoppingSection | None
) -> CheckpointManifest:
    """Return the manifest after an evaluation on the validation split; None: there is no such split."""
    if evaluation is None:
        return manifest.model_copy(update={"metrics": {}, "evaluation_due": False})
    values: dict[str, Any] = {
        "metrics": evaluation.named("validation"),
        "headline": evaluation.headline,
        "directions": dict(evaluation.directions),
        "evaluation_due": False,
    }
    if rule is not None:
        values["early_stopping"] = judge(manifest.early_stopping or EarlyStopping(), rule, evaluation)
    return manifest.model_copy(update=values)


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
