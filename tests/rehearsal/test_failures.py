"""A run whose bucket goes away while two machines train: nothing is left running."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.config import RunConfig
from rehearsal.cloud import BUCKETS_FOLDER, LocalCloud
from rehearsal.gcs import Rule
from tests.conftest import small_config, write_pictures
from tests.rehearsal.world import find_marked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PROJECT = "acme-vision"
RUN = "run-1"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    folder = tmp_path / "cloud"
    write_pictures(folder / BUCKETS_FOLDER / "line-1" / "raw")
    with LocalCloud(folder, projects={PROJECT: "123456789012"}, buckets=["line-1"]) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
    assert find_marked(str(folder)) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A training of minutes on two machines."""
    images = {role: f"us-docker.pkg.dev/a/b/{role}@sha256:{'0' * 64}" for role in ("cpu", "gpu")}
    values = small_config(
        run={"name": "small", "root": "gs://line-1/lines"},
        sharding={"source": "gs://line-1/raw"},
        profile={"window_s": 0.05},
        train={"epochs": 2000},
        resources={"machine": {"type": "n1-standard-4"}, "nodes": 2, "ranks": 1},
        cloud={"project": PROJECT, "region": "us-central1", "images": images},
    )
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(RunConfig.model_validate(values).model_dump(mode="json")))
    return path


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(reached: Callable[[], Any], limit_s: float = 600) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := reached()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def training(cloud: LocalCloud) -> Any:
    """Return the training's custom job once checkpoints of it are in the bucket."""
    jobs = [job for job in cloud.store.list("projects/") if getattr(job, "display_name", "") == "small-train"]
    line = cloud.folder / BUCKETS_FOLDER / "line-1" / "lines" / "small" / "train"
    return jobs[0] if jobs and list(line.glob("*/checkpoints/step-*")) else None


def states(cloud: LocalCloud) -> dict[str, str]:
    kinds = ("CustomJob", "PipelineJob", "Job")
    return {job.name: job.state.name for job in cloud.store.list("projects/") if type(job).__name__ in kinds[:2]}


def test_a_bucket_that_goes_away_ends_the_run(cloud: LocalCloud, config: Path) -> None:
    follower = start("submit", config, "--run-id", RUN, "--wait")
    wait_until(lambda: training(cloud))
    cloud.buckets.faults.set(Rule(bucket="line-1", status=404))
    told, _ = follower.communicate(timeout=900)
    assert follower.returncode in (2, 75), told
    assert "error:" in told and "bucket" in told
    wait_until(lambda: find_marked(str(cloud.folder)) == [], limit_s=120)
    assert not [state for state in states(cloud).values() if state.rpartition("_")[2] in ("RUNNING", "PENDING")]
    line = cloud.folder / BUCKETS_FOLDER / "line-1" / "lines" / "small"
    assert not list(line.glob("train/*/manifest.json"))
