"""Training with kills against training without: `shardline drill CONFIG --kills N`.

Both run on the same shards, the same profile and the same seed, in folders of their own. The disturbed one is killed at
moments drawn from the seed and started again, by whoever starts it again in production. Afterwards every step's samples
and loss, and every tensor of the last checkpoint, must be equal.

    python -m trainer.drill.task --config-json TEXT --shards URI [--profile URI] --folder FOLDER
                            [--kills N] [--mode M] [--seed S]

Exit code 0: equal. 1: not equal; the first step and the first tensor that differ are named.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from contracts import storage
from contracts.drill import DRILL_MODES
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, ShardlineError
from contracts.output import empty_folder, mark_folder
from contracts.process import run_process
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.checkpoint.discovery import find_newest, list_checkpoints
from trainer.checkpoint.loading import load_groups
from trainer.drill.trace import TracedStep, read_trace
from trainer.drill.training import DrillTraining, Kill, plan_kills


@dataclass
class Side:
    """What one of the two trainings did."""

    steps: int
    samples_per_epoch: list[int]
    """Different samples of each epoch."""
    repeated: int
    """Samples that an epoch took more than once."""
    parameters_sha256: str
    optimizer_sha256: str


@dataclass
class Report:
    """The outcome of a drill."""

    undisturbed: Side
    disturbed: Side
    kills: list[Kill] = field(default_factory=list)
    lost_steps: int = 0
    """Optimizer steps that were taken, lost and taken again."""
    differences: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def drill(
    config: dict[str, Any],
    inputs: dict[str, str],
    folder: Path,
    *,
    kills: int,
    mode: str | None,
    seed: int,
    say: Callable[[str], None] = lambda message: None,
) -> Report:
    """Train twice and compare.

    Args:
        config: Sections of the train stage.
        inputs: URIs of `shards` and, where there is one, `profile`.
        folder: Of this drill or an earlier one, which is deleted.
        kills: Number of kills.
        mode: One of contracts.drill.DRILL_MODES; None: kills of ranks, every third while a checkpoint is written.
        seed: Of moments and ranks.
        say: Takes a line for each thing that happens.

    Raises:
        ConfigError: There are no steps to kill in, or the folder is not a drill's.
        ShardlineError: A training failed by itself.
    """
    mark_folder(storage.normalise(folder), "drill")
    empty_folder(storage.normalise(folder))
    undisturbed = DrillTraining("undisturbed", config, inputs, folder, say=say)
    undisturbed.run([], random.Random(seed))
    steps = read_trace(undisturbed.trace)
    if len(steps) < 2:
        raise ConfigError(
            f"training has {len(steps)} optimizer steps",
            allowed="2 or more",
            todo="train on more samples, more epochs or a smaller train.global_batch_size",
        )
    disturbed = DrillTraining("disturbed", config, inputs, folder, say=say)
    generator = random.Random(seed)
    planned = plan_kills(kills, mode, num_steps=len(steps), generator=generator)
    done = disturbed.run(planned, generator)
    say(f"compares samples and losses of {len(steps)} steps, and the tensors of the last checkpoints")
    retaken = read_trace(disturbed.trace)
    report = Report(
        _describe(undisturbed, steps),
        _describe(disturbed, retaken),
        done,
        sum(step.times_taken - 1 for step in retaken.values()),
    )
    _time_restarts(done, disturbed.trace)
    report.differences += compare(undisturbed, disturbed)
    if len(done) < kills:
        report.differences.append(f"only {len(done)} of {kills} kills happened: training was over")
    return report


def _time_restarts(kills: list[Kill], trace: Path) -> None:
    """Note how long after each kill a process that was started since took its first step."""
    first_steps = []
    for path in sorted(trace.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        if lines:
            first_steps.append(float(json.loads(lines[0])["time"]))
    for kill in kills:
        later = [one for one in first_steps if one > kill.at]
        kill.restart_s = min(later) - kill.at if later else None


def _describe(training: DrillTraining, steps: dict[int, TracedStep]) -> Side:
    by_epoch: dict[int, list[int]] = {}
    for step in steps.values():
        by_epoch.setdefault(step.epoch, []).extend(step.samples)
    state = _last_state(training)
    return Side(
        steps=len(steps),
        samples_per_epoch=[len(set(samples)) for _, samples in sorted(by_epoch.items())],
        repeated=sum(len(samples) - len(set(samples)) for samples in by_epoch.values()),
        parameters_sha256=_sha256(state["model"]),
        optimizer_sha256=_sha256(state["optimizer"]),
    )


def _last_state(training: DrillTraining) -> dict[str, dict[str, str]]:
    """Return the sha256 of every tensor of a training's last checkpoint, by group and name."""
    folder = storage.join(training.output, CHECKPOINTS_FOLDER)
    found = find_newest(folder, list_checkpoints(folder))
    if found.manifest is None:
        return {"model": {}, "optimizer": {}}
    groups = load_groups(found.uri, found.manifest)
    return {
        group: {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _sha256(hashes: dict[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in sorted(hashes.items())).encode()).hexdigest()


def compare(expected: DrillTraining, found: DrillTraining) -> list[str]:
    """Return in words the first step, and the first tensor of each group, that differ; nothing when all is equal."""
    steps = _compare_steps(read_trace(expected.trace), read_trace(found.trace))
    return steps + _compare_tensors(expected, found)


def _compare_steps(expected: dict[int, TracedStep], found: dict[int, TracedStep]) -> list[str]:
    """Name the first step that differs, and how."""
    for number in sorted(expected.keys() | found.keys()):
        if number not in found:
            return [f"step {number} was never taken by the disturbed training"]
        if number not in expected:
            return [f"step {number} was taken by the disturbed training only"]
        one, other = expected[number], found[number]
        if one.samples != other.samples:
            pairs = enumerate(zip(one.samples, other.samples, strict=False))
            place = next((i for i, (ours, theirs) in pairs if ours != theirs), len(one.samples))
            ours, theirs = one.samples[place : place + 4], other.samples[place : place + 4]
            return [f"step {number} trained on other samples: {theirs} instead of {ours} at place {place} of the batch"]
        if one.loss != other.loss:
            return [f"step {number} is the first whose loss differs: {other.loss!r} instead of {one.loss!r}"]
    return []


def _compare_tensors(expected: DrillTraining, found: DrillTraining) -> list[str]:
    """Name the first tensor of the last checkpoints that differs, in each group."""
    ours, theirs = _last_state(found), _last_state(expected)
    differences = []
    for group in sorted(ours.keys() | theirs.keys()):
        one, other = theirs.get(group, {}), ours.get(group, {})
        names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        if names:
            differences.append(f"{group}: {names[0]} differs in the last checkpoint ({len(names)} of {len(one)} do)")
    return differences


def _show(report: Report, words: Any) -> None:
    for name, side in (("undisturbed", report.undisturbed), ("disturbed", report.disturbed)):
        epochs = ", ".join(map(str, side.samples_per_epoch))
        print(
            f"{name:12} {side.steps} steps, samples per epoch {epochs} ({side.repeated} repeated)\n"
            f"{'':12} parameters {side.parameters_sha256}\n{'':12} optimizer  {side.optimizer_sha256}",
            file=words,
        )
    for kill in report.kills:
        restart = "was not needed" if kill.restart_s is None else f"took {kill.restart_s:.1f} s to the next step"
        print(f"kill         {kill.what} at step {kill.step}; restart {restart}", file=words)
    print(f"lost steps   {report.lost_steps}", file=words)
    for difference in report.differences:
        print(f"differs      {difference}", file=words)
    print("equal" if report.equal else "not equal", file=words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a drill; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.drill.task", allow_abbrev=False)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--profile", default=None)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--mode", choices=DRILL_MODES, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    inputs = {"shards": options.shards} | ({"profile": options.profile} if options.profile else {})
    try:
        report = drill(
            json.loads(options.config_json),
            inputs,
            options.folder,
            kills=options.kills,
            mode=options.mode,
            seed=options.seed,
            say=lambda message: print(f"drill: {message}", file=sys.stderr, flush=True),
        )
    except ShardlineError as error:
        print(f"drill: error: {error}", file=sys.stderr)
        return error.exit_code
    document = {**asdict(report), "equal": report.equal}
    storage.replace(storage.normalise(options.folder / "drill.json"), json.dumps(document, indent=1).encode())
    _show(report, sys.stdout)
    return EXIT_OK if report.equal else EXIT_CHECK_FAILED


if __name__ == "__main__":
    run_process(main)
