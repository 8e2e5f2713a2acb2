"""The shard stage beside a Dataflow job of the same work: by Google's own client, on a local Dataflow."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from google.cloud.dataflow_v1beta3 import types

from contracts import storage
from contracts.errors import ErrorDocument
from contracts.result import run_label
from contracts.stage import run_stage
from sharding.task import name_job, shard
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, Cloud, wait_for

DATAFLOW: dict[str, Any] = {
    "resources": {"beam_runner": "dataflow"},
    "cloud": {"project": PROJECT, "region": REGION},
}


def end(job: Any) -> None:
    job.current_state = types.JobState.JOB_STATE_DONE


def test_a_job_that_runs_already_is_joined_before_anything_is_touched(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str], image_folder: Path
) -> None:
    root = tmp_path / "shard"
    section = {"sharding": {"source": str(image_folder)}}
    given = ["--root", root.as_uri(), "--config-json", json.dumps({**section, **DATAFLOW})]
    assert run_stage("shard", shard, [*given, "--list"]) == 0
    uri = capsys.readouterr().out.splitlines()[-1]
    name = name_job(uri, uri.rpartition("/")[2])
    for job_id, state in (("old", "DONE"), ("there", "RUNNING"), ("failed", "FAILED")):
        cloud.add_dataflow_job(job_id, name, state, client_request_id=job_id)
    cloud.add_dataflow_job("other", "shardline-98")
    # What the first run has left, up to its refusal, is its own.
    folder = storage.local_path(uri)
    (folder / ".work" / "plan-2.json").write_text("the first run's")
    document = ErrorDocument(kind="DataError", exit_code=2, message="the first run's")
    (folder / "refusal.json").write_text(document.model_dump_json())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def end_once_joined() -> None:
        wait_for(lambda: any("GetJob" in entry.method for entry in cloud.server.access_log.entries()[asked:]))
        cloud.store.update(f"projects/{NUMBER}/locations/{REGION}/jobs/there", end)

    asked = len(cloud.server.access_log.entries())
    threading.Thread(target=end_once_joined, daemon=True).start()
    assert run_stage("shard", shard, given) == 2
    output = capsys.readouterr().err
    assert "job there of the same work runs already: this run joins it" in output and "the first run's" in output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


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
