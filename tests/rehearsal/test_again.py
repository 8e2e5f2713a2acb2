"""One line submitted again and again to one local cloud: what KFP's cache keeps, and what a failure leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import aiplatform_v1 as gapic

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, MANIFESTS
from inspection.run.find import RunPlace
from inspection.run.read import read_run
from rehearsal.cloud import BUCKETS_FOLDER, LocalCloud
from rehearsal.machines.machine import Scale
from tests.conftest import small_config, write_pictures
from tests.pipelines.images import image

pytestmark = [pytest.mark.line, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PROJECT, NUMBER = "acme-vision", "123456789012"
LINE = "gs://line-1/lines/again"
TASKS = ("list-source", "shard", "profile", "train", "export", "record")


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    folder = tmp_path / "cloud"
    write_pictures(folder / BUCKETS_FOLDER / "line-1" / "raw")
    with LocalCloud(folder, projects={PROJECT: NUMBER}, buckets=["line-1"], scale=Scale(time_scale=0.01)) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    values = small_config(
        run={"name": "again", "root": "gs://line-1/lines"},
        sharding={"source": "gs://line-1/raw"},
        profile={"window_s": 0.05},
        resources={"machine": {"type": "n1-standard-4"}, "ranks": 1},
        cloud={
            "project": PROJECT,
            "region": "us-central1",
            "images": {role: image(role) for role in ("pipeline", "trainer", "export")},
        },
    )
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def submit(config: Path, run: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", "submit", str(config), "--wait", "--run-id", run, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def details_of(cloud: LocalCloud, run: str) -> dict[str, Any]:
    """Return how a run's tasks ended, by name."""
    job = cloud.store.get(f"projects/{NUMBER}/locations/us-central1/pipelineJobs/{run}")
    return {detail.task_name: detail for detail in gapic.PipelineJob.pb(job).job_detail.task_details}


def run_again(cloud: LocalCloud, config: Path, run: str, *words: str) -> set[str]:
    """Submit, and return the tasks that ran; the others were in the cache."""
    done = submit(config, run, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    states = {
        name: gapic.PipelineTaskDetail.State(detail.state).name for name, detail in details_of(cloud, run).items()
    }
    assert {states[name] for name in TASKS} <= {"SUCCEEDED", "SKIPPED"}
    return {name for name in TASKS if states[name] == "SUCCEEDED"}


def check_lineage(cloud: LocalCloud, run: str) -> None:
    """Walk from the data set to what is served, by the artifacts alone: each is a finished folder."""
    made_from = {"shards": "listing", "model": "shards", "served": "checkpoint"}
    names = {}
    for stage, output in (("shard", "shards"), ("train", "model"), ("export", "served")):
        (artifact,) = details_of(cloud, run)[stage].outputs[output].artifacts
        document = MANIFESTS[stage].load(artifact.uri)
        told = dict(artifact.metadata)
        assert told["fingerprint"] == document.fingerprint
        names[output] = {**told, "schema": artifact.schema_title}
        assert told[f"made_from_{made_from[output]}"] == document.made_from[made_from[output]]
    assert [names[each]["schema"] for each in made_from] == ["system.Dataset", "system.Model", "system.Model"]
    assert names["model"]["made_from_shards"] == names["shards"]["fingerprint"]
    assert names["served"]["made_from_checkpoint"] == names["model"]["parameters_sha256"]


def test_a_line_submitted_again_runs_what_has_changed(cloud: LocalCloud, config: Path, tmp_path: Path) -> None:
    assert run_again(cloud, config, "run-1") == set(TASKS)
    check_lineage(cloud, "run-1")

    assert run_again(cloud, config, "run-2") == {"list-source", "record"}
    check_lineage(cloud, "run-2")
    first, second = (read_run(RunPlace(LINE, run), pictures=False) for run in ("run-1", "run-2"))
    assert (second.state, {stage.state for stage in second.stages}) == ("succeeded", {"reused"})
    assert [stage.uri for stage in second.stages] == [stage.uri for stage in first.stages]

    ran = run_again(cloud, config, "run-3", "train.learning_rate=0.02")
    assert ran == {"list-source", "train", "export", "record"}

    for picture in write_pictures(tmp_path / "more", per_class=8).rglob("*.png"):
        name = f"{picture.stem}-new.png"
        storage.replace(storage.join("gs://line-1/raw", picture.parent.name, name), picture.read_bytes())
    assert run_again(cloud, config, "run-4") == set(TASKS)

    # KFP's cache knows nothing of what was deleted.
    trained = details_of(cloud, "run-4")["train"].outputs["model"].artifacts[0].uri
    storage.delete_tree(trained, manifest_name=MANIFEST_NAME)
    failed = submit(config, "run-5", "export.max_batch=32")
    assert failed.returncode == 2 and "submit CONFIG --no-cache" in failed.stderr, failed.stderr
    state = details_of(cloud, "run-5")
    assert state["record"].state == gapic.PipelineTaskDetail.State.SUCCEEDED
    record = json.loads(storage.read_bytes(f"{LINE}/runs/run-5/run.json"))
    assert record["state"] == "failed" and record["error"].startswith(f"task train: {trained} ")
    assert {stage["name"]: stage["state"] for stage in record["stages"]} == {
        "shard": "reused",
        "profile": "reused",
        "train": "not started",
        "export": "not started",
    }
