"""Shards of synthetic images, and the trainer's stages on them: each a process of its own with a limit of time."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from contracts import storage
from contracts.config import STAGE_KEYS
from contracts.events import EVENTS_NAME, EventReader
from inspection.training import read_curves
from records.sample import Sample
from tests import shards

CLASSES, STEPS, EVALUATED, IMAGES = 4, 60, 256, 512
COLOURS = ((220, 60, 60), (60, 220, 60), (60, 60, 220), (160, 160, 60))
MODULES = {"train": "trainer.task", "profile": "trainer.profiling.task", "export": "trainer.export.task"}
# A training takes about a minute on an H100, most of it before the first step.
LIMIT_S = 170.0

Config = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class StageRun:
    """A stage that has ended."""

    folder: Path
    code: int

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "manifest.json").read_bytes()))

    @property
    def error(self) -> str:
        """The message of error.json, else the end of the log."""
        paths = sorted((self.folder / "attempts").glob("*/error.json"))
        return str(json.loads(paths[-1].read_bytes())["message"]) if paths else self.log[-2000:]

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")

    def scalars(self, name: str) -> list[float]:
        curves = read_curves(storage.normalise(self.output / "scalars"), points=1000)[0]
        return next((curve.values for curve in curves if curve.name == name), [])


@dataclass(frozen=True)
class Machine:
    """The device, and the sizes of all trainings: ResNet-50 on 224 px, on a CPU a small network on 16 px."""

    folder: Path
    gpus: int
    memory_bytes: int

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def ranks(self) -> int:
        return self.gpus or 2

    @property
    def batch(self) -> int:
        return self.ranks * (128 if self.memory_bytes > 40e9 else 32 if self.gpus else 16)

    @property
    def image_size(self) -> int:
        return 224 if self.gpus else 16

    @property
    def model(self) -> dict[str, Any]:
        small = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        return {"architecture": "resnet"} if self.gpus else {"architecture": "resnet", "arguments": small}

    def config(self, changes: Mapping[str, Mapping[str, Any]]) -> Config:
        """Return the sections of a training with changes; checkpoints come at its end alone, beside no timed step."""
        workers = max(1, min(16, len(os.sched_getaffinity(0)) // self.ranks - 2)) if self.gpus else 0
        sections: Config = {
            "data": {"image_size": self.image_size, "num_workers": workers},
            "model": self.model,
            "train": {
                "global_batch_size": self.batch,
                "learning_rate": 1e-3 if self.gpus else 1e-2,
                "epochs": 1,
                "precision": "fp32",
                "compile": "off",
            },
            "resources": {"ranks": self.ranks},
            "checkpoint": {"every_steps": 100_000},
        }
        return {name: {**sections.get(name, {}), **changes.get(name, {})} for name in {**sections, **changes}}

    def start(
        self, stage: str, name: str, changes: Mapping[str, Mapping[str, Any]], *more: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a stage into a folder of its own."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        config = {key: value for key, value in self.config(changes).items() if key in STAGE_KEYS[stage]}
        given = [f"--config-json={json.dumps(config)}", f"--shards={self.folder / 'shards'}", *more]
        command = [sys.executable, "-m", MODULES[stage], *given, f"--output={folder / 'out'}", "--end-with-parent"]
        with (folder / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})

    def run(self, stage: str, name: str, changes: Mapping[str, Mapping[str, Any]], *more: str) -> StageRun:
        """Run a stage to its end."""
        process = self.start(stage, name, changes, *more)
        try:
            code = process.wait(LIMIT_S)
        finally:
            # Its ranks end with it.
            process.kill()
        return StageRun(self.folder / name, code)

    def train(self, name: str, changes: Mapping[str, Mapping[str, Any]]) -> StageRun:
        """Train, unless a test before has: to the end, on the device, with a loss that fell by a tenth."""
        done = StageRun(self.folder / name, 0)
        run = done if done.folder.exists() else self.run("train", name, changes)
        assert run.code == 0, run.error
        assert run.manifest["environment"]["device"] == self.device
        losses = run.scalars("train/loss")
        assert all(map(math.isfinite, losses)) and losses[-1] < 0.9 * losses[0], losses
        return run

    def rate(self, run: StageRun) -> float:
        """Return samples per second of a training: the median over reports of 20 steps, the first one left out."""
        return statistics.median(run.scalars("train/samples_per_s")[1:])


def resumes(run: StageRun) -> list[int]:
    """Return the steps at which the ranks of a training have begun."""
    paths = (run.folder / "attempts").glob(f"*/{EVENTS_NAME}")
    return [event["step"] for path in paths for event in EventReader(path).poll() if event["event"] == "resume"]


def write_shards(machine: Machine) -> None:
    """Write a tar and its index for each split, and the manifest; no stage of sharding is needed for it.

    A tenth of the labels is drawn at random, so that the loss stays away from 0.
    """
    random = np.random.default_rng(0)
    images = [_jpeg(random, number % CLASSES, machine.image_size * 8 // 7) for number in range(IMAGES)]
    sizes = {"train": STEPS * machine.batch, "validation": EVALUATED, "test": EVALUATED}

    def sample(split: str, place: int) -> Sample:
        label = int(random.integers(CLASSES)) if random.random() < 0.1 else place % IMAGES % CLASSES
        path = f"{split}/{place}.jpg"
        return Sample(shards.key_of_path(path), images[place % IMAGES], "jpeg", label, str(label), path, 0, 0, "RGB")

    splits = {split: [[sample(split, place) for place in range(samples)]] for split, samples in sizes.items()}
    classes = [str(label) for label in range(CLASSES)]
    shards.write_shards(machine.folder / "shards", splits, classes=classes, mean=[0.4] * 3, std=[0.25] * 3)


def _jpeg(random: np.random.Generator, label: int, side: int) -> bytes:
    cells = random.normal(COLOURS[label], 70, (8, 8, 3)).clip(0, 255).astype(np.uint8)
    pixels = cells.repeat(-(-side // 8), axis=0).repeat(-(-side // 8), axis=1)[:side, :side]
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90))
