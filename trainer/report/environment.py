"""Environment of a training (ranks, threads, versions): recorded in checkpoints, compared on resume."""

from __future__ import annotations

import numpy as np
import torch

from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from trainer.launch.auto import BatchLayout
from trainer.model.precision import Numerics
from trainer.parallel import describe_parallel
from trainer.parallel.process_group import Rank


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
