"""The whole line follows what its profiling run has found: what was planted shows in how training cuts and loads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport
from contracts.events import EVENTS_NAME, EventReader
from tests.test_line import REPOSITORY, shardline, write_config

PLANTED = "tests.trainer.profiling.planted"
ONLY = {"method": "sweep", "window_s": 0.1}


def run(folder: Path, pictures: Path, **sections: Any) -> tuple[ProfileReport, CheckpointManifest, str]:
    """Run a line with one rank; return its profile, its result, and the ranks' message on how they load."""
    sections["profile"] = {**ONLY, "slot_sizes": "auto", "num_workers": [0], **sections.get("profile", {})}
    sections["train"] = {"epochs": 1, **sections.get("train", {})}
    done = shardline("run", write_config(folder, pictures, resources={"ranks": 1, "threads": 1}, **sections))
    line = folder / "runs/small"
    [profile] = [path.parent for path in line.glob("profile/*/manifest.json")]
    [trained] = [path.parent for path in line.glob("train/*/manifest.json")]
    assert done.returncode == 0, done.stderr
    messages = [
        event["message"]
        for path in (line / "train").rglob(EVENTS_NAME)
        for event in EventReader(path).poll()
        if event["event"] == "log" and "num_workers" in event["message"] and "slot_size" in event["message"]
    ]
    report = ProfileReport.load(storage.normalise(profile))
    return report, CheckpointManifest.load(storage.normalise(trained)), messages[0]


@pytest.mark.slow
def test_for_a_loader_that_sleeps_training_takes_more_processes(pictures: Path, tmp_path: Path) -> None:
    slow = {"transform": f"{PLANTED}:slow_image"}
    tried = {"num_workers": [0, 3], "slot_sizes": [8]}
    small = {"precision": "fp32", "max_batch": 8}
    report, trained, message = run(
        tmp_path, pictures, data=slow, profile=tried, train={"epochs": 1, "max_steps": 2}, export=small
    )
    assert report.choice.num_workers == 3
    assert trained.environment["num_workers"] == "3" and "num_workers 3: chosen by the profile" in message


@pytest.mark.line
def test_a_budget_of_5_s_gives_the_accuracy_of_the_defaults(tmp_path: Path) -> None:
    """The demo's network has BatchNorm, whose batch is a slot: slots of one sample cost four points of accuracy."""
    subprocess.run([sys.executable, "examples/digits.py", str(tmp_path / "raw")], check=True, cwd=REPOSITORY)
    config = [str(REPOSITORY / "configs/digits.yaml"), f"run.root={tmp_path}", f"sharding.source={tmp_path / 'raw'}"]
    config += ["train.epochs=2", "resources.ranks=1", "resources.threads=1"]

    def made(stage: str, *words: str) -> str:
        done = shardline(stage, *config, *words)
        assert done.returncode == 0, done.stderr
        return storage.normalise(done.stdout.splitlines()[-1])

    made("shard")
    report = ProfileReport.load(folder := made("profile", "profile.budget_s=5"))
    assert report.choice.slot_size >= 16
    trained = [
        CheckpointManifest.load(made("train", "--to", str(tmp_path / name), *words))
        for name, words in (("profiled", ["--profile", folder]), ("off", ["profile=off"]))
    ]
    first, second = (each.metrics["test_accuracy"] for each in trained)
    assert second > 0.7 and first >= second - 0.02
    assert [each.profile for each in trained] == [report.fingerprint, ""]
    if not report.choice.measured:
        assert trained[0].parameters_sha256 == trained[1].parameters_sha256
