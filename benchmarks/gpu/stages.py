"""The stage commands as cases run them, and what they leave: exit code, error, manifest, events, scalars."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Setting, module_command

# A log of a failed stage is kept to its end: that is where the reason is.
LOG_CHARACTERS = 3000


class Failed(Exception):
    """What a case checks does not hold.

    Args:
        why: In one line.
        details: What was found, for the result.
    """

    def __init__(self, why: str, **details: Any) -> None:
        super().__init__(why)
        self.why, self.details = why, details


class NotRun(Exception):
    """A case cannot run here, and why."""


@dataclass(frozen=True)
class StageRun:
    """A stage that has ended, or runs."""

    folder: Path
    """Holds the output, the attempts and the log."""

    @property
    def output(self) -> Path:
        """The output's folder."""
        return self.folder / "out"

    @property
    def log_path(self) -> Path:
        """File of what is printed."""
        return self.folder / "log.txt"

    @property
    def log(self) -> str:
        """The end of it."""
        return self.log_path.read_text(errors="replace")[-LOG_CHARACTERS:]

    @property
    def error(self) -> dict[str, Any]:
        """The error document of the newest attempt; empty: none."""
        paths = sorted((self.folder / "attempts").glob("*/error.json"))
        return dict(json.loads(paths[-1].read_bytes())) if paths else {}

    @property
    def manifest(self) -> dict[str, Any]:
        """The document that finished the output."""
        return dict(json.loads((self.output / "manifest.json").read_bytes()))

    def events(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a kind, of all attempts."""
        from contracts.events import EVENTS_NAME, EventReader

        for path in sorted((self.folder / "attempts").glob(f"*/{EVENTS_NAME}")):
            yield from (event for event in EventReader(path).poll() if event["event"] == kind)

    def scalars(self, name: str) -> list[float]:
        """Return the values of a TensorBoard scalar, in the order of steps; none: it was not written."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

        (folder,) = self.folder.rglob("tensorboard")
        reader = EventAccumulator(str(folder))
        reader.Reload()
        return [scalar.value for scalar in reader.Scalars(name)] if name in reader.Tags()["scalars"] else []


def start_stage(
    setting: Setting,
    stage: str,
    name: str,
    changes: Mapping[str, Mapping[str, Any]],
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> tuple[StageRun, subprocess.Popen[bytes]]:
    """Start a stage of the trainer into a folder of its own; it ends with this process.

    Args:
        setting: Of this run.
        stage: train, profile or export.
        name: Of the folder; a stage that is finished there is reused, as everywhere.
        changes: Of the configuration.
        arguments: Of the command, besides configuration, shards and output.
        environment: Variables that are added.
    """
    from contracts.config import STAGE_SECTIONS

    module = {"train": "trainer.task", "profile": "trainer.profiling.task", "export": "trainer.export.task"}[stage]
    config = setting.with_changes(changes)
    sections = {section: values for section, values in config.items() if section in STAGE_SECTIONS[stage]}
    run = StageRun(setting.path / name)
    run.folder.mkdir(parents=True, exist_ok=True)
    given = [f"--config-json={json.dumps(sections)}", f"--shards={setting.shards}", f"--output={run.output}"]
    command = module_command(module, *given, "--end-with-parent", *arguments)
    # Who ends this process for its time finds there what it was about.
    print(f"log: {run.log_path}", file=sys.stderr, flush=True)
    with run.log_path.open("ab") as log:
        return run, subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})


def run_stage(
    setting: Setting, stage: str, name: str, changes: Mapping[str, Mapping[str, Any]], *arguments: str
) -> StageRun:
    """Run a stage to its end.

    Raises:
        Failed: It ended with an error.
    """
    run, process = start_stage(setting, stage, name, changes, *arguments)
    require_success(run, process.wait(), stage)
    return run


def require_success(run: StageRun, code: int, stage: str) -> None:
    """Raise Failed for an exit code that is not 0, with the stage's own words."""
    if code != 0:
        said = str(run.error.get("message", "no error.json")).splitlines()[0]
        raise Failed(f"the {stage} stage ended with exit code {code}: {said}", log=run.log)


def train(setting: Setting, name: str, changes: Mapping[str, Mapping[str, Any]]) -> StageRun:
    """Train by the stage's own command, to the end."""
    return run_stage(setting, "train", name, changes)


def check_learning(setting: Setting, run: StageRun) -> dict[str, Any]:
    """See to it that a training computed on the device and learnt; return what it measured.

    `samples_per_s` is the median of the trainer's own rate over reports of 20 steps, without the first one, which holds
    the warm-up. Evaluation and checkpoints are in none of them.

    Raises:
        Failed: Another device, a loss that is not finite, or a loss that did not fall by a tenth.
    """
    manifest, losses, rates = run.manifest, run.scalars("train/loss"), run.scalars("train/samples_per_s")
    memory = run.scalars("memory/gpu_allocated_peak_bytes")
    found = {
        "samples_per_s": round(statistics.median(rates[1:] or rates), 1),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "steps": manifest["step"],
        "numerics": manifest["numerics"],
        "parallel": manifest["environment"]["parallel"],
        "gpu_allocated_peak_bytes": int(memory[-1]) if memory else None,
    }
    if manifest["environment"]["device"] != setting.device:
        raise Failed(f"computed on {manifest['environment']['device']}, not on {setting.device}", **found)
    if not all(map(math.isfinite, losses)):
        raise Failed("a loss is not finite", **found)
    if not losses[-1] < 0.9 * losses[0]:
        raise Failed(f"the loss did not fall: {losses[0]:.4f} to {losses[-1]:.4f}", **found)
    return found
