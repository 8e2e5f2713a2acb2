"""The SDK and logging's client, unmodified, with nothing but the server's variables."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.gcs import BucketServer
from rehearsal.gcs.objects import PROJECT_NUMBER

from .conftest import NUMBER, SPEC, Cloud


class Done:
    """What the child process printed, and the cloud that it spoke to."""

    def __init__(self, cloud: Cloud, found: dict[str, Any], errors: str) -> None:
        self.cloud, self.found, self.errors = cloud, found, errors


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    folder = tmp_path_factory.mktemp("sdk")
    spec = folder / "line.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    triton = folder / "buckets" / "line-bucket" / "triton"
    triton.mkdir(parents=True)
    (triton / "config.pbtxt").touch()
    with BucketServer(folder / "buckets", buckets=["line-bucket"], is_open=True) as bucket:
        cloud = Cloud(folder / "cloud", buckets=bucket)
        cloud.pipelines.go.set()
        for job_id, severity in (("7", "ERROR"), ("8", "WARNING"), ("7", "INFO"), ("9", "ERROR")):
            labels = {"job_id": job_id, "task_name": "workerpool0-0", "project_id": "shardline-test"}
            cloud.server.logs.write("ml_job", labels, f"{job_id} says {severity}", severity, cloud.clock.now())
        with cloud.server:
            script = Path(__file__).with_name("sdk_child.py")
            child = cloud.run([sys.executable, "-W", "ignore", str(script), str(spec), cloud.server.endpoint])
            assert child.returncode == 0, child.stderr
            yield Done(cloud, json.loads(child.stdout.splitlines()[-1]), child.stderr)


def test_a_submission_with_an_experiment(done: Done) -> None:
    assert done.found["name"] == f"projects/{NUMBER}/locations/us-central1/pipelineJobs/run-1"
    assert done.found["state"] == "PIPELINE_STATE_SUCCEEDED"
    assert done.found["experiment"] == "an-experiment"
    assert done.found["listed"] == ["run-1"]
    assert done.found["unknown project"] == "PermissionDenied"


def test_a_root_in_no_bucket_fails_the_job(done: Done) -> None:
    assert done.found["no bucket"] == ["PIPELINE_STATE_FAILED", 9]
    assert done.cloud.pipelines.started == [
        f"projects/{NUMBER}/locations/us-central1/pipelineJobs/run-{n}" for n in (1, 2)
    ]


def test_a_list_has_the_fields_of_its_mask(done: Done) -> None:
    assert done.found["simple view"] == [["lost", "line", False]]


def test_storage_by_its_own_name_is_the_bucket_server(done: Done) -> None:
    assert done.found["storage"] == ["there"]
    assert "storage.googleapis.com:443" in {entry.resource for entry in done.cloud.server.access_log.entries("CONNECT")}


def test_the_buckets_owner_is_checked_and_right(done: Done) -> None:
    assert done.found["bucket project"] == int(NUMBER) == int(PROJECT_NUMBER)
    assert done.cloud.server.access_log.entries("Projects.GetProject")
    assert "bucket squatting" not in done.errors and "Traceback" not in done.errors, done.errors


def test_schedules(done: Done) -> None:
    assert done.found["schedule"] == ["TZ=Europe/Berlin 0 6 * * 1", "ACTIVE", 1]
    assert done.found["jobs of schedule"] == 0


def test_models_versions_and_aliases(done: Done) -> None:
    assert done.found["same model"] is True
    assert done.found["versions"] == {"1": [], "2": ["candidate"], "3": ["default"]}
    assert done.found["moved"] == {"1": [], "2": [], "3": ["candidate", "default"]}
    assert done.found["models"] == ["3"] and done.found["by alias"] == "3"
    assert done.found["container"] == [True, 8000]
    assert done.found["other place"] == "NotFound"


def test_logs(done: Done) -> None:
    assert done.found["grpc logs"] == ["7 says ERROR", "8 says WARNING"] == done.found["rest logs"]


def test_the_sdk_over_rest(done: Done) -> None:
    assert done.found["rest job"] == ["a job"] and done.found["rest job ended"] == "JOB_STATE_CANCELLED"
    (name,) = done.cloud.jobs.started
    container = done.cloud.store.get(name).job_spec.worker_pool_specs[0].container_spec
    assert container.env[0].value == 'a "b"\nc'
    assert done.found["rest name"].endswith("/pipelineJobs/run-2")
    # Runs of these tests succeed at once: it may have done so before it was cancelled.
    assert done.found["rest line"] in ("PIPELINE_STATE_CANCELLED", "PIPELINE_STATE_SUCCEEDED")
    doors = {e.method: e.transport for e in done.cloud.server.access_log.entries()}
    assert doors["JobService.CreateCustomJob"] == "rest" == doors["PipelineService.CancelPipelineJob"]


def test_nothing_went_elsewhere(done: Done) -> None:
    refused = {
        entry.resource.split("/")[2] for entry in done.cloud.server.access_log.entries() if entry.status == "403"
    }
    # The logging client looks whether it runs on a machine of Google's.
    assert refused <= {"metadata.google.internal."}
    unknown = [e for e in done.cloud.server.access_log.entries() if e.status in ("UNIMPLEMENTED", "404", "INTERNAL")]
    assert unknown == []
