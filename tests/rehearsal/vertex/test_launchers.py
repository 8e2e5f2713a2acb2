"""The launchers of Google's pipeline components, unmodified: processes with nothing but the server's variables."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic
from google.cloud import dataflow_v1beta3

from .conftest import IMAGE, JOB, NUMBER, PROJECT, Cloud, rest

LAUNCHERS = "google_cloud_pipeline_components.container.v1"
DATAFLOW = f"projects/{PROJECT}/locations/us-central1/jobs/2026-11-22_00_00_00-1"
DEADLINE_S = 120
MODEL = {"display_name": "digits", "container_spec": {"image_uri": IMAGE}}


class Launcher:
    """One launcher's process."""

    def __init__(
        self, cloud: Cloud, folder: Path, module: str, kind: str, payload: Any, *more: str, **env: str
    ) -> None:
        self.resources = folder / "outputs" / "gcp_resources"
        arguments = {"type": kind, "project": PROJECT, "location": "us-central1", "payload": json.dumps(payload)}
        command = [sys.executable, "-W", "ignore", "-m", f"{LAUNCHERS}.{module}.launcher"]
        for name, value in (arguments | {"gcp_resources": str(self.resources)}).items():
            command += [f"--{name}", value]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)} | cloud.server.environment | env
        self.process = subprocess.Popen(
            [*command, *more], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def end(self) -> tuple[int, str]:
        """Wait for its end; return (code, what it printed)."""
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        return self.process.returncode, out + err


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_custom_job_takes_one_answer(cloud: Cloud, tmp_path: Path) -> None:
    labels = json.dumps({"vertex-ai-pipelines-run-billing-id": "17"})
    launcher = Launcher(cloud, tmp_path, "custom_job", "CustomJob", JOB, VERTEX_AI_PIPELINES_RUN_LABELS=labels)
    wait_for(lambda: cloud.server.access_log.under_way("JobService.GetCustomJob"))
    cloud.jobs.go.set()
    code, printed = launcher.end()
    assert code == 0, printed
    (name,) = cloud.jobs.started
    (resource,) = json.loads(launcher.resources.read_text())["resources"]
    assert resource["resourceUri"] == f"https://us-central1-aiplatform.googleapis.com/v1/{name}"
    (asked,) = cloud.server.access_log.entries("JobService.GetCustomJob")
    assert asked.transport == "grpc" and "google-cloud-pipeline-components" in asked.user_agent
    assert cloud.store.get(name).labels["vertex-ai-pipelines-run-billing-id"] == "17"


@pytest.mark.slow
def test_sigterm_cancels_the_job_while_its_answer_is_held(cloud: Cloud, tmp_path: Path) -> None:
    launcher = Launcher(cloud, tmp_path, "custom_job", "CustomJob", JOB)
    wait_for(lambda: cloud.server.access_log.under_way("JobService.GetCustomJob"))
    launcher.process.send_signal(signal.SIGTERM)
    code, printed = launcher.end()
    assert code == 0, printed
    (name,) = cloud.jobs.started
    assert cloud.store.get(name).state == gapic.JobState.JOB_STATE_CANCELLED
    (asked,) = cloud.server.access_log.entries("JobService.CancelCustomJob")
    assert asked.transport == "rest"


@pytest.mark.slow
def test_nobody_is_waited_for_who_is_gone(cloud: Cloud, tmp_path: Path) -> None:
    held = "JobService.GetCustomJob"
    launcher = Launcher(cloud, tmp_path, "custom_job", "CustomJob", JOB)
    wait_for(lambda: cloud.server.access_log.under_way(held))
    launcher.process.kill()
    launcher.end()
    wait_for(lambda: not cloud.server.access_log.under_way(held))
    (name,) = cloud.jobs.started
    host, port = cloud.server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        lines = [f"GET /v1/{name} HTTP/1.1", f"Host: {host}", "User-Agent: google-cloud-pipeline-components"]
        lines += [f"Authorization: Bearer {cloud.server.access.token}", "", ""]
        client.sendall("\r\n".join(lines).encode())
        wait_for(lambda: cloud.server.access_log.under_way(held))
    wait_for(lambda: not cloud.server.access_log.under_way(held))
    assert cloud.store.get(name).state == gapic.JobState.JOB_STATE_RUNNING


@pytest.mark.slow
def test_a_refused_custom_job_fails_the_launcher(cloud: Cloud, tmp_path: Path) -> None:
    pool = JOB["job_spec"]["worker_pool_specs"][0]
    payload = JOB | {"job_spec": {"worker_pool_specs": [pool | {"replica_count": 4}]}}
    code, printed = Launcher(cloud, tmp_path, "custom_job", "CustomJob", payload).end()
    assert code != 0 and "job_spec.worker_pool_specs[0].replica_count" in printed
    assert cloud.jobs.started == []


@pytest.mark.slow
def test_waiting_for_dataflow(cloud: Cloud, tmp_path: Path) -> None:
    name = DATAFLOW.replace(PROJECT, NUMBER)
    states: Any = dataflow_v1beta3.JobState
    cloud.store.add(name, dataflow_v1beta3.Job(name="shard", current_state=states.JOB_STATE_RUNNING))
    uri = f"https://dataflow.googleapis.com/v1b3/{DATAFLOW}"
    payload = {"resources": [{"resourceType": "DataflowJob", "resourceUri": uri}]}
    launcher = Launcher(cloud, tmp_path, "wait_gcp_resources", "Wait", payload)
    wait_for(lambda: cloud.server.access_log.under_way("JobsV1Beta3.GetJob"))
    cloud.store.update(name, lambda job: setattr(job, "current_state", states.JOB_STATE_DONE))
    code, printed = launcher.end()
    assert code == 0, printed
    (asked,) = cloud.server.access_log.entries("JobsV1Beta3.GetJob")
    assert asked.transport == "rest"


@pytest.mark.slow
@pytest.mark.parametrize("parent", [False, True])
def test_a_model_upload(cloud: Cloud, tmp_path: Path, parent: bool) -> None:
    models = rest(cloud, gapic.ModelServiceClient)
    more = []
    if parent:
        place = f"projects/{PROJECT}/locations/us-central1"
        first = models.upload_model(parent=place, model=MODEL).result(30)
        more = ["--parent_model_name", f"{first.model}@1"]
    container = {"imageUri": "us-docker.pkg.dev/p/r/triton", "ports": [{"containerPort": 8000}], "healthRoute": "/v2"}
    executor_input = {
        "inputs": {
            "artifacts": {
                "unmanaged_container_model": {
                    "artifacts": [{"uri": "gs://bucket/triton", "metadata": {"containerSpec": container}}]
                }
            }
        },
        "outputs": {
            "artifacts": {"model": {"artifacts": [{"name": "model", "uri": "", "metadata": {}}]}},
            "outputFile": str(tmp_path / "executor_output.json"),
        },
    }
    payload = {"display_name": "digits", "description": "", "version_aliases": ["candidate"]}
    more += ["--executor_input", json.dumps(executor_input)]
    code, printed = Launcher(cloud, tmp_path, "model.upload_model", "UploadModel", payload, *more).end()
    assert code == 0, printed
    (model,) = models.list_models(
        {"parent": f"projects/{PROJECT}/locations/us-central1", "filter": 'display_name="digits"'}
    )
    version = models.get_model(name=f"{model.name}@candidate")
    assert version.version_id == ("2" if parent else "1")
    assert version.artifact_uri == "gs://bucket/triton" and version.container_spec.ports[0].container_port == 8000
    output = json.loads((tmp_path / "executor_output.json").read_text())
    metadata = output["artifacts"]["model"]["artifacts"][0]["metadata"]
    assert metadata["resourceName"] == f"{model.name}@{version.version_id}"
    assert cloud.server.access_log.entries("ModelService.UploadModel")[-1].transport == "rest"
