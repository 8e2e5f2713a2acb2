"""The launcher of custom jobs of Google's components, unmodified, with nothing but the server's variables."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as gapic

from tests.rehearsal.world import wait_until

from .conftest import JOB, PROJECT, Cloud


@pytest.mark.parametrize("ends", ["succeeded", pytest.param("cancelled", marks=pytest.mark.slow)])
def test_a_custom_job_takes_one_answer_and_ends_with_its_launcher(cloud: Cloud, tmp_path: Path, ends: str) -> None:
    resources = tmp_path / "outputs" / "gcp_resources"
    values = {"type": "CustomJob", "project": PROJECT, "location": "us-central1", "payload": json.dumps(JOB)}
    words = [f"--{name}={value}" for name, value in (values | {"gcp_resources": str(resources)}).items()]
    module = "google_cloud_pipeline_components.container.v1.custom_job.launcher"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | cloud.server.environment
    environment["VERTEX_AI_PIPELINES_RUN_LABELS"] = json.dumps({"vertex-ai-pipelines-run-billing-id": "17"})
    launcher = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *words],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    # Written once the job is there, before its state is asked for.
    wait_until(lambda: resources.exists() and resources.read_text())
    if ends == "cancelled":
        launcher.send_signal(signal.SIGTERM)
    else:
        cloud.jobs.go.set()
    printed, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, printed
    (name,) = cloud.jobs.started
    (resource,) = json.loads(resources.read_text())["resources"]
    assert resource["resourceUri"] == f"https://us-central1-aiplatform.googleapis.com/v1/{name}"
    assert cloud.store.get(name).labels["vertex-ai-pipelines-run-billing-id"] == "17"
    if ends == "cancelled":
        assert cloud.store.get(name).state == gapic.JobState.JOB_STATE_CANCELLED
        (asked,) = cloud.server.access_log.entries("JobService.CancelCustomJob")
        assert asked.transport == "rest"
    else:
        (asked,) = cloud.server.access_log.entries("JobService.GetCustomJob")
        assert asked.transport == "grpc" and "google-cloud-pipeline-components" in asked.user_agent
