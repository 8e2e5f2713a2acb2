"""`shardline drill`: a training undisturbed, and the same one killed at seeded steps; both must end alike.

Both train on the same shards, profile and seed, in folders of their own. The kills come at steps that the training's
events tell. Compared are the parameters of the result, and the losses and metrics that were recorded at evaluations.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from components.launch import stage_environment
from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.config.load import stage_config
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_TRY_AGAIN, ConfigError, ShardlineError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME, LOG_NAME, EventReader
from contracts.output import empty_folder, mark_folder
from contracts.process import end_with_parent
from contracts.scalars import SCALARS_FOLDER
from inspection.run.curves import read_curves
from pipelines.local.stages import check_cost_cap, locate_inputs
from pipelines.place import stage_root

# No training reports nothing for so long, unless it hangs.
SILENCE_S = 600.0
_LOOK_S = 0.05
# A kill comes up to so many seconds after the report of its step: anywhere within the steps that follow.
_LATE_S = 0.5
_ALL_ROWS = 1_000_000


def run_drill(
    config: RunConfig,
    *,
    kills: int,
    mode: Literal["sigkill", "sigterm"],
    seed: int,
    output: str | None,
    given: Mapping[str, str | None],
) -> int:
    """Train twice and compare; return 0 where both are equal, else 1.

    Args:
        config: The resolved configuration, with absolute paths.
        kills: Number of kills.
        mode: Signal to the stage. SIGKILL takes its ranks along.
        seed: Of the steps.
        output: Folder to work in; None: `drill` beside the line's training.
        given: Paths or URIs of `shards` and `profile`; None: the line's own.

    Raises:
        ConfigError: The folder is not on this machine, or not a drill's; or a cost cap has no price.
        StageFailed: An earlier stage has not run; the error says which.
        ShardlineError: A training failed by itself, or hangs.
    """
    check_cost_cap(config)
    uri = storage.normalise(output) if output is not None else storage.join(stage_root(config, "train"), "drill")
    if not storage.is_local(uri):
        raise ConfigError(f"--output {output}", allowed="a folder on this machine", todo="name a local folder")
    mark_folder(uri, "drill")
    empty_folder(uri)
    inputs = [f"--{name}={value}" for name, value in locate_inputs("train", config, given).items()]
    arguments = ["--config-json", json.dumps(stage_config(config, "train")), *inputs]
    folder = storage.local_path(uri)
    steps = _train(folder / "undisturbed", arguments, [], mode)
    generator = random.Random(seed)
    planned = sorted(generator.randrange(max(1, steps)) for _ in range(kills))
    _train(folder / "disturbed", arguments, planned, mode, generator)
    differences = _compare(folder / "undisturbed", folder / "disturbed")
    for difference in differences:
        print(f"differs: {difference}")
    print("not equal" if differences else f"equal after {kills} kills: parameters, losses and metrics")
    return EXIT_CHECK_FAILED if differences else EXIT_OK


def _train(
    folder: Path,
    arguments: list[str],
    kills: list[int],
    mode: Literal["sigkill", "sigterm"],
    generator: random.Random | None = None,
) -> int:
    """Train to the end, starting again after each kill; return the number of optimizer steps.

    Raises:
        ShardlineError: The training ended with an error that no kill explains, hangs, or was over before a kill.
    """
    folder.mkdir(parents=True)
    left, attempt, steps = list(kills), 0, 0
    number = signal.SIGKILL if mode == "sigkill" else signal.SIGTERM
    while True:
        attempt += 1
        _say(folder, f"starts, attempt {attempt}")
        reader = EventReader(folder / ATTEMPTS_FOLDER / f"a{attempt}" / EVENTS_NAME)
        process = _start(folder, f"a{attempt}", arguments)
        heard, killed = time.monotonic(), False
        try:
            while process.poll() is None:
                for event in reader.poll():
                    heard = time.monotonic()
                    if event["event"] != "progress" or event["unit"] != "steps":
                        continue
                    steps = int(event["total"])
                    if left and not killed and generator is not None and event["done"] >= left[0]:
                        time.sleep(generator.random() * _LATE_S)
                        if process.poll() is not None:
                            break
                        _say(folder, f"{number.name} after step {event['done']}, planned for {left.pop(0)}")
                        process.send_signal(number)
                        killed = True
                if time.monotonic() - heard > SILENCE_S:
                    raise ShardlineError(f"the {folder.name} training hangs; its log is {folder / LOG_NAME}")
                time.sleep(_LOOK_S)
        finally:
            process.kill()
            code = process.wait()
        if code == EXIT_OK and not left:
            return steps
        if code == EXIT_OK:
            raise ShardlineError(f"training was over before {len(left)} of {len(kills)} kills: train longer")
        if not killed or code not in (EXIT_TRY_AGAIN, -signal.SIGKILL):
            raise ShardlineError(f"the {folder.name} training ended with {code}; its log is {folder / LOG_NAME}")


def _start(folder: Path, attempt: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainer.task", f"--output={folder / 'training'}", f"--attempt={attempt}"]
    # Parameters are compared to the bit: a GPU adds up in any order otherwise (trainer/model/precision.py).
    environment = {**stage_environment(), "SHARDLINE_DETERMINISTIC": "1"}
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Safe: this process has one thread.
            preexec_fn=end_with_parent,
        )


def _compare(expected: Path, found: Path) -> list[str]:
    """Return in words what differs between two finished trainings."""
    one, other = (CheckpointManifest.load(storage.normalise(folder / "training")) for folder in (expected, found))
    differences = []
    if one.parameters_sha256 != other.parameters_sha256:
        differences.append(f"parameters: {other.parameters_sha256} instead of {one.parameters_sha256}")
    # Losses of training are means since the last report, which a restart begins anew: those of evaluations are exact.
    values, others = (_recorded(folder) | manifest.metrics for folder, manifest in ((expected, one), (found, other)))
    names = sorted(name for name in values.keys() | others.keys() if values.get(name) != others.get(name))
    return differences + [f"{name}: {others.get(name)} instead of {values.get(name)}" for name in names]


def _recorded(folder: Path) -> dict[str, float]:
    """Return the losses and metrics of each evaluation of a training, by name and step."""
    curves = read_curves(storage.normalise(folder / "training" / SCALARS_FOLDER), points=_ALL_ROWS).curves
    return {
        f"{curve.name} at step {step}": value
        for curve in curves
        if curve.name.startswith("validation/")
        for step, value in zip(curve.steps, curve.values, strict=True)
    }


def _say(folder: Path, message: str) -> None:
    print(f"drill: {folder.name}: {message}", file=sys.stderr, flush=True)
