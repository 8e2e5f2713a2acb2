"""Eight weeks of a scheduled line on the clock of the local cloud, by unmodified clients.

The firings alone, with a played training: tests/pipelines/vertex/test_commands.py.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.cloud import aiplatform
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFESTS, ShardManifest
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.config.sharding import SPLITS, SplitFractions
from pipelines.runs import read_tasks
from pipelines.submit import state_of
from rehearsal.clock import Clock
from rehearsal.cloud import LocalCloud
from rehearsal.gcs import Rule
from rehearsal.machines.machine import Scale
from sharding.splits import Splitter
from tests.conftest import small_config
from tests.pipelines.images import image
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION

ROOT = Path(__file__).parents[2]
LINE, SOURCE = "gs://bucket-1/lines/weekly", "gs://source-1/raw"
# Profiling is off.
TASKS = ("list-source", "shard", "train", "export", "register", "record")
WEEK_S = 7 * 86400.0
# A Sunday in autumn: summer time ends between the first two firings, Monday at six in Berlin.
SUNDAY = datetime(2026, 10, 18, 12, tzinfo=UTC).timestamp()
FRACTIONS = {"train": 0.5, "validation": 0.1, "test": 0.4}
# The channels in which a class is bright.
CLASSES = {"blue": (2,), "green": (1,), "red": (0,), "white": (0, 1, 2)}


def make_config() -> RunConfig:
    """Return the configuration of the line: small pictures, one epoch, nothing measured."""
    values = small_config(
        run={"name": "weekly", "root": "gs://bucket-1/lines"},
        sharding={"source": SOURCE, "splits": FRACTIONS, "incremental": True},
        profile={"method": "off"},
        train={"epochs": 1, "global_batch_size": 8},
        resources={"machine": {"type": "n1-standard-4"}, "ranks": 1},
        export={"runtime": "onnx", "precision": "fp32", "allow_unproven": True},
        register={"upload": True},
        schedule={"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"},
        cloud={
            "project": PROJECT,
            "region": REGION,
            "images": {role: image(role) for role in ("cpu", "gpu", "serving")},
        },
    )
    return parse_config(values, where="test")


def use(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead this process's clients to a local cloud."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = aiplatform.initializer.global_config
    monkeypatch.setattr(settings, "_credentials", None)
    # gRPC reads the certificates that it trusts once a process, and this is not the only local cloud.
    monkeypatch.setattr(settings, "_api_transport", "rest")


def runs_of(schedule: Any) -> list[Any]:
    """Return the runs of a schedule, the oldest first."""
    found: list[Any] = schedule.list_jobs(order_by="create_time", enable_simple_view=False)
    return found


def wait_until(reached: Callable[[], Any], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        # Whoever looks takes time of what runs.
        time.sleep(1)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    with LocalCloud(
        tmp_path / "cloud",
        projects={PROJECT: NUMBER},
        buckets=["bucket-1", "source-1"],
        scale=Scale(time_scale=0.01),
        clock=Clock(SUNDAY),
    ) as found:
        use(found.environment, monkeypatch)
        yield found


def shardline(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def draw(name: str, number: int) -> bytes:
    """Return a noisy picture of a class, as PNG."""
    random = np.random.default_rng([*CLASSES[name], number])
    pixels = random.integers(0, 160, (16, 16, 3), dtype=np.uint8)
    for channel in CLASSES[name]:
        pixels[..., channel] = random.integers(96, 256, (16, 16), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class Weeks:
    """A scheduled line, week after week.

    Args:
        cloud: Where it runs.
        path: Its configuration.
    """

    def __init__(self, cloud: LocalCloud, path: Path) -> None:
        self.cloud, self.path = cloud, path
        (self.schedule,) = aiplatform.PipelineJobSchedule.list(project=PROJECT, location=REGION)
        self.number = 0
        self.run: Any = None
        """The run of this week."""
        self.ran: set[str] = set()
        """Tasks that this week's run did; the others were in KFP's cache."""
        self.record: dict[str, Any] = {}
        """run.json of this week."""

    def add(self, numbers: range, *names: str) -> None:
        """Put pictures of some classes into the source."""
        for name in names:
            for number in numbers:
                storage.replace(f"{SOURCE}/{name}/{number:03d}.png", draw(name, number))

    def fire(self) -> None:
        """Let a week pass, and wait until its run has ended."""
        self.number += 1
        self.cloud.clock.advance(WEEK_S)
        wait_until(lambda: len(runs_of(self.schedule)) == self.number, 60)
        self.run = runs_of(self.schedule)[-1]
        wait_until(lambda: self.run.state.name in ("PIPELINE_STATE_SUCCEEDED", "PIPELINE_STATE_FAILED"), 900)
        self.ran = {task.name for task in read_tasks(self.run) if task.state == "succeeded"}
        self.record = json.loads(storage.read_bytes(f"{LINE}/runs/{self.run.name}/run.json"))
        assert {task.name for task in read_tasks(self.run)} <= set(TASKS)

    @property
    def decision(self) -> dict[str, Any]:
        found: dict[str, Any] = self.record["results"]["register"]
        return found

    def shards(self) -> ShardManifest:
        return ShardManifest.load(self.artifact("shard", "shards").uri)

    def artifact(self, task: str, output: str) -> Any:
        (detail,) = (found for found in self.run.task_details if found.task_name == task)
        return detail.outputs[output].artifacts[0]

    def new_samples(self) -> int:
        """Return how many samples are in shards that this week's run has written."""
        return sum(entry.samples for entry in self.shards().shards if not entry.folder)

    def check_lineage(self) -> None:
        """Walk from the listing to what is served by the artifacts alone; each is a finished folder."""
        fingerprints = {}
        for task, output, source in (
            ("shard", "shards", "listing"),
            ("train", "model", "shards"),
            ("export", "served", "checkpoint"),
        ):
            artifact = self.artifact(task, output)
            document, metadata = MANIFESTS[task].load(artifact.uri), dict(artifact.metadata)
            assert metadata["fingerprint"] == document.fingerprint
            assert metadata[f"made_from_{source}"] == document.made_from[source]
            fingerprints[output] = metadata
        assert fingerprints["model"]["made_from_shards"] == fingerprints["shards"]["fingerprint"]
        assert fingerprints["served"]["made_from_checkpoint"] == fingerprints["model"]["parameters_sha256"]

    def aliases(self) -> dict[str, str]:
        """Return the version of each alias, in the registry."""
        (model,) = aiplatform.Model.list(filter='display_name="weekly"', project=PROJECT, location=REGION)
        registry = aiplatform.models.ModelRegistry(model, project=PROJECT, location=REGION)
        return {alias: found.version_id for found in registry.list_versions() for alias in found.version_aliases}

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(shardline("status", self.run.name, "--config", self.path, "-o", "json"))
        return found


def wrong_names(count: int) -> list[str]:
    """Return names of pictures in the folder `blue` that the training split gets: the test split stays right."""
    names = (f"blue/{number}.png" for number in range(500, 10_000))
    splitter = Splitter(SplitFractions(**FRACTIONS))
    train = (name for name in names if SPLITS[splitter.choose(name.encode(), None, None)] == "train")
    return [next(train) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_eight_weeks_of_a_line(cloud: LocalCloud, tmp_path: Path) -> None:
    path = tmp_path / "weekly.yaml"
    path.write_text(yaml.safe_dump(make_config().model_dump(mode="json")))
    shardline("schedule", "create", path)
    weeks = Weeks(cloud, path)
    known = ("blue", "green", "red")

    # The first model.
    weeks.add(range(12), *known)
    weeks.fire()
    assert weeks.ran == set(TASKS), weeks.record["error"]
    assert (weeks.record["state"], weeks.decision["verdict"]) == ("succeeded", "production")
    assert weeks.aliases() == {"default": "1", "latest": "1", "production": "1"}
    weeks.check_lineage()
    first = weeks.record
    start = json.loads(storage.read_bytes(f"{LINE}/runs/{weeks.run.name}/run-start.json"))
    assert start["data_date"] == "2026-10-19T06:00:00+02:00"

    # The source is as it was.
    weeks.fire()
    assert weeks.ran == {"list-source", "record"}
    start = json.loads(storage.read_bytes(f"{LINE}/runs/{weeks.run.name}/run-start.json"))
    assert start["data_date"] == "2026-10-26T06:00:00+01:00"
    assert weeks.record["state"] == "succeeded" and weeks.decision == first["results"]["register"]
    assert [stage["uri"] for stage in weeks.record["stages"]] == [stage["uri"] for stage in first["stages"]]
    weeks.check_lineage()
    status = weeks.status()
    assert {task["name"]: task["state"] for task in status["tasks"]} == {
        task: "succeeded" if task in weeks.ran else "reused" for task in TASKS
    }

    # New files of the known classes are all that is sharded, and make a better model.
    weeks.add(range(12, 40), *known)
    weeks.fire()
    assert weeks.ran == set(TASKS)
    assert weeks.new_samples() == 3 * 28
    assert sum(split.samples for split in weeks.shards().splits.values()) == 3 * 40
    assert weeks.decision["verdict"] == "production"
    assert weeks.decision["candidate"] > weeks.decision["production"]
    assert weeks.aliases() == {"default": "2", "latest": "2", "production": "2"}

    # Wrong labels.
    wrong = [f"{SOURCE}/{name}" for name in wrong_names(48)]
    for number, uri in enumerate(wrong):
        storage.replace(uri, draw("red", 500 + number))
    weeks.fire()
    assert (weeks.record["state"], weeks.decision["verdict"]) == ("succeeded", "kept out")
    assert weeks.decision["candidate"] < weeks.decision["production"] - 0.1
    assert weeks.aliases() == {"default": "2", "latest": "3", "production": "2"}

    # They are gone, and there are more files.
    for uri in wrong:
        storage.delete(uri)
    weeks.add(range(40, 80), *known)
    weeks.fire()
    assert weeks.new_samples() == 3 * 40
    assert weeks.decision["verdict"] == "production"
    assert weeks.aliases() == {"default": "4", "latest": "4", "production": "4"}

    # A new class: the models are compared on those that both know.
    weeks.add(range(30), "white")
    weeks.fire()
    assert weeks.decision["verdict"] == "production" and weeks.decision["left_out"] > 0
    assert weeks.shards().classes == [*known, "white"]
    assert weeks.aliases() == {"default": "5", "latest": "5", "production": "5"}

    # A source that nobody may read.
    cloud.buckets.faults.set(Rule(bucket="source-1", status=403))
    weeks.fire()
    cloud.buckets.faults.set()
    assert weeks.ran == {"record"} and state_of(weeks.run) == "failed"
    assert weeks.record["state"] == "failed" and weeks.record["error"].startswith("task list-source: ")
    failure = weeks.status()["failure"]
    assert failure["task"] == "list-source" and SOURCE in failure["stage_message"]
    assert weeks.aliases() == {"default": "5", "latest": "5", "production": "5"}

    # As it was before.
    weeks.fire()
    assert weeks.ran == {"list-source", "record"} and weeks.record["state"] == "succeeded"
    assert weeks.aliases() == {"default": "5", "latest": "5", "production": "5"}
    assert f"run {weeks.run.name}: succeeded" in shardline("status", "weekly:latest", "--config", path)
    assert shardline("logs", weeks.run.name, "--config", path, "--task", "record").strip().endswith("record: succeeded")
    shardline("schedule", "delete", path)
