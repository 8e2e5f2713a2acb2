"""Launching the shard stage beside a Dataflow job of the same name: by Beam's own client, on a local Dataflow."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.result import run_label
from contracts.stage import run_stage
from sharding.adoption import name_job
from sharding.task import shard
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud

DATAFLOW: dict[str, Any] = {
    "resources": {"beam_runner": "dataflow"},
    "cloud": {"project": PROJECT, "region": REGION},
}


def job_of(path: Path) -> str:
    (resource,) = json.loads(path.read_text())["resources"]
    assert resource["resourceType"] == "DataflowJob"
    return str(resource["resourceUri"]).rpartition("/")[2]


def test_a_job_that_runs_already_is_joined_before_anything_is_touched(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str], image_folder: Path
) -> None:
    root = tmp_path / "shard"
    section = {"sharding": {"source": str(image_folder)}}
    given = ["--root", root.as_uri(), "--config-json", json.dumps({**section, **DATAFLOW})]
    assert run_stage("shard", shard, [*given, "--where"]) == 0
    uri = capsys.readouterr().out.splitlines()[-1]
    name = name_job(uri, uri.rpartition("/")[2])
    for job_id, state in (("old", "DONE"), ("there", "RUNNING"), ("failed", "FAILED")):
        cloud.add_dataflow_job(job_id, name, state, client_request_id=job_id)
    cloud.add_dataflow_job("other", "shardline-98")
    # What the first run has left, up to its refusal, is its own.
    folder = storage.local_path(uri)
    (folder / ".work").mkdir(parents=True)
    (folder / ".work" / "plan-2.json").write_text("the first run's")
    (folder / "refusal.json").write_text("the first run's")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    launch = tmp_path / "gcp" / "resources"
    assert run_stage("shard", shard, [*given, "--launch", str(launch)]) == 0
    assert "job there of the same work runs already: this run joins it" in capsys.readouterr().err
    assert job_of(launch) == "there"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_shards_that_another_run_has_finished_meanwhile(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str], image_folder: Path
) -> None:
    root = (tmp_path / "shard").as_uri()
    section = {"sharding": {"source": str(image_folder)}}
    assert run_stage("shard", shard, ["--root", root, "--config-json", json.dumps(section)]) == 0
    uri = capsys.readouterr().out.splitlines()[-1]
    launch = tmp_path / "resources"
    given = ["--root", root, "--config-json", json.dumps({**section, **DATAFLOW}), "--launch", str(launch)]
    assert run_stage("shard", shard, given) == 75
    assert "run again, and it is reused" in capsys.readouterr().err and not launch.exists()
    cloud.add_dataflow_job("made-it", name_job(uri, uri.rpartition("/")[2]), "DONE")
    assert run_stage("shard", shard, given) == 0
    assert job_of(launch) == "made-it"


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "raw" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (8, 8), (number, 20, 30)).save(tmp_path / "raw" / name / f"{number}.png")
    return tmp_path / "raw"


def test_a_runs_label_is_one_that_dataflow_takes() -> None:
    assert run_label("line-20261122-0001-r2") == "line-20261122-0001-r2"
    assert run_label("Line/1.A") == "line-1-a"
    long = [run_label(120 * "a" + suffix) for suffix in ("", "-r2")]
    assert {len(label) for label in long} == {63} and len(set(long)) == 2
