"""The drill: equal where training is exact, and red where it is not."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainer
from contracts.config import STAGE_SECTIONS
from contracts.endings import JOB_ID_VARIABLE
from contracts.errors import EXIT_CHECK_FAILED, EXIT_USER_ERROR
from tests.conftest import small_config
from trainer.drill.training import DrillTraining, plan_kills
from trainer.model.precision import DETERMINISTIC_VARIABLE

# 5 steps an epoch.
CONFIG = small_config(train={"epochs": 12}, checkpoint={"every_steps": 3})


def drill(shards: str, folder: Path, *more: str, config: dict[str, Any] = CONFIG, code: Path | None = None) -> Any:
    sections = {name: config[name] for name in STAGE_SECTIONS["train"] if name in config}
    command = [
        sys.executable,
        "-m",
        "trainer.drill.task",
        f"--config-json={json.dumps(sections)}",
        f"--shards={shards}",
    ]
    command += [f"--folder={folder}", *more]
    # The path of the first package found wins; -m would put the working directory before it.
    places = [str(place) for place in (code, Path(trainer.__file__).parents[1]) if place]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.mark.line
def test_a_killed_training_equals_an_undisturbed_one(small_shards: str, tmp_path: Path) -> None:
    done = drill(small_shards, tmp_path / "d", "--kills=3", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "d" / "drill.json").read_text())
    assert report["equal"] and len(report["kills"]) == 3
    assert "between the data and the manifest" in report["kills"][0]["what"]
    assert [kill["what"].startswith("SIGKILL to rank") for kill in report["kills"]] == [False, True, True]
    assert report["undisturbed"] == report["disturbed"]
    assert report["undisturbed"]["samples_per_epoch"] == [70] * 12 and report["undisturbed"]["repeated"] == 0
    assert report["lost_steps"] > 0
    # What it does is said while it does it; the result alone is on stdout.
    told = done.stderr.splitlines()
    assert told[0] == "drill: undisturbed: starts"
    assert "drill: undisturbed: step 60 of 60" in told and "drill: disturbed: step 60 of 60" in told
    kills = [
        f"drill: disturbed: kill {n} of 3: {one['what']}, at step {one['step']}"
        for n, one in enumerate(report["kills"], 1)
    ]
    assert [line for line in told if ": kill " in line] == kills
    assert "drill: disturbed: starts again, attempt 2" in told
    assert sum("goes on from the checkpoint of step" in line for line in told) >= 2
    assert told[-1].startswith("drill: compares samples and losses of 60 steps")
    assert "drill:" not in done.stdout


@pytest.mark.line
@pytest.mark.parametrize("mode", ["sigterm", "mid-checkpoint", pytest.param("stop", marks=pytest.mark.slow)])
def test_each_mode(small_shards: str, tmp_path: Path, mode: str) -> None:
    config = small_config(train={"epochs": 12}, checkpoint={"every_steps": 3}, resources={"step_timeout_s": 15})
    done = drill(small_shards, tmp_path / "d", "--kills=2", f"--mode={mode}", config=config)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_an_off_by_one_in_the_cursor_turns_the_drill_red(small_shards: str, tmp_path: Path) -> None:
    """Planted in a copy of the package: a resume goes on one sample too early."""
    source = Path(trainer.__file__).parent
    shutil.copytree(source, tmp_path / "code" / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    cursor = tmp_path / "code" / "trainer" / "data" / "order" / "cursor.py"
    right = "order.places(epoch, start, count)"
    assert right in cursor.read_text()
    wrong = right.replace("start", "max(0, start - (position > 0))")
    cursor.write_text(cursor.read_text().replace(right, wrong))
    config = small_config(train={"epochs": 12}, checkpoint={"every_steps": 2})
    done = drill(
        small_shards, tmp_path / "d", "--kills=1", "--mode=mid-checkpoint", config=config, code=tmp_path / "code"
    )
    assert done.returncode == EXIT_CHECK_FAILED, done.stdout + done.stderr
    assert "differs      step " in done.stdout and "not equal" in done.stdout


def test_kills_are_drawn_from_the_seed() -> None:
    drawn = [plan_kills(6, None, num_steps=100, generator=random.Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [kill.mode for kill in drawn[0]] == ["mid-checkpoint"] * 2 + ["sigkill"] * 4
    assert all(1 <= kill.step < 100 for kill in drawn[0])


def test_the_environment_of_both_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU sums come in any order otherwise; as a job of Vertex AI a training waits 180 s behind each SIGTERM."""
    monkeypatch.setenv(JOB_ID_VARIABLE, "7")
    process = DrillTraining("undisturbed", {}, {}, tmp_path).start()
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
    finally:
        process.kill()
        process.wait()
    assert f"{DETERMINISTIC_VARIABLE}=1" in environment
    assert not any(entry.startswith(f"{JOB_ID_VARIABLE}=") for entry in environment)


def test_a_folder_of_somebody_else_is_left_alone(small_shards: str, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    done = drill(small_shards, tmp_path)
    assert done.returncode == EXIT_USER_ERROR and "did not write" in done.stderr
    assert (tmp_path / "mine.txt").exists()
