"""What the cases of the GPU check share: device, ranks, sizes and the configuration of all trainings.

Imported by the command and by every case, so it imports nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
# Below this much memory a GPU trains smaller batches, and one case runs at a time.
LARGE_GPU_BYTES = 40e9
CLASSES = 4

Config = dict[str, dict[str, Any]]
Details = dict[str, Any]
"""What a case found, for the result."""


@dataclass(frozen=True)
class Setting:
    """The device and the sizes; the same for all cases of a run."""

    device: str
    """cuda or cpu."""
    device_name: str
    capability: str
    """Compute capability of the GPU (sm90); empty without one."""
    memory_bytes: int
    """Of one GPU; 0 without one."""
    ranks: int
    cores: int
    steps: int
    """Optimizer steps of a training: one epoch."""
    image_size: int
    folder: str
    """Everything that cases write lies below it."""
    config: Config
    """Sections that all trainings share."""

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    @property
    def shards(self) -> Path:
        """Folder of the synthetic shards."""
        return self.path / "shards"

    @property
    def on_gpu(self) -> bool:
        """Whether the cases compute on a GPU."""
        return self.device == "cuda"

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return int(self.config["train"]["global_batch_size"])

    def with_changes(self, changes: Mapping[str, Mapping[str, Any]]) -> Config:
        """Return the configuration with the sections of a case merged in."""
        return merge(self.config, changes)

    def to_json(self) -> str:
        """Return it as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setting:
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


def make_setting(machine: Mapping[str, Any], folder: Path, *, on_gpu: bool, changes: Config) -> Setting:
    """Return the setting of a machine (machine.py).

    A GPU trains ResNet-50 on 224 px images, enough to fill it; a CPU a network of 10,000 parameters on 16 px images, on
    two ranks, so that a run takes seconds.
    """
    cores = len(os.sched_getaffinity(0))
    ranks = int(machine["gpus"]) if on_gpu else 2
    memory = int(machine["memory_bytes"]) if on_gpu else 0
    if on_gpu:
        config: Config = {
            "data": {"image_size": 224, "num_workers": max(1, min(16, cores // ranks - 2))},
            "model": {"architecture": "resnet"},
            "train": {"global_batch_size": ranks * (128 if memory >= LARGE_GPU_BYTES else 32), "learning_rate": 1e-3},
        }
    else:
        network = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        config = {
            "data": {"image_size": 16, "num_workers": 0},
            "model": {"architecture": "resnet", "arguments": network},
            "train": {"global_batch_size": 32, "learning_rate": 1e-2},
        }
    config["train"] |= {"epochs": 1, "precision": "fp32", "compile": "off"}
    # Rank numbers from here: how a machine's GPUs are counted is not what is checked. Checkpoints at the end alone, so
    # that none is written beside the steps that are timed.
    config |= {"resources": {"ranks": ranks}, "checkpoint": {"every_steps": 100_000}}
    return Setting(
        device="cuda" if on_gpu else "cpu",
        device_name=str(machine["device"]) if on_gpu else "cpu",
        capability=str(machine["capability"]) if on_gpu else "",
        memory_bytes=memory,
        ranks=ranks,
        cores=cores,
        steps=80 if on_gpu else 60,
        image_size=int(config["data"]["image_size"]),
        folder=str(folder),
        config=merge(config, changes),
    )


def merge(config: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return the sections of a configuration with others merged in."""
    return {name: {**config.get(name, {}), **changes.get(name, {})} for name in {**config, **changes}}


def child_environment(*, on_gpu: bool) -> dict[str, str]:
    """Return the environment of a case: the repository importable, and no GPU where the CPU was asked for."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return environment if on_gpu else environment | {"CUDA_VISIBLE_DEVICES": ""}


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this repository by this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def find_missing(needs: Sequence[str]) -> list[str]:
    """Return which modules are not installed; nothing is imported."""
    return [one for one in needs if not any(importlib.util.find_spec(name) for name in one.split("|"))]
