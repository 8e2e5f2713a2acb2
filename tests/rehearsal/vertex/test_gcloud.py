"""gcloud's surface for custom jobs, where it is installed: it has none for pipelines."""

import json
import shutil
from pathlib import Path

import pytest

from .conftest import JOB, Cloud

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]


def gcloud(cloud: Cloud, *arguments: str) -> str:
    command = ["gcloud", "ai", "custom-jobs", *arguments, "--region=us-central1", "--format=json"]
    done = cloud.run(command, CLOUDSDK_PYTHON_SITEPACKAGES="0")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_creates_lists_describes_and_cancels(cloud: Cloud, tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    pool = JOB["job_spec"]["worker_pool_specs"][0]
    spec = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": pool["container_spec"]["image_uri"]},
    }
    config.write_text(json.dumps({"workerPoolSpecs": [spec]}))
    gcloud(cloud, "create", "--display-name=by hand", f"--config={config}")
    (listed,) = json.loads(gcloud(cloud, "list"))
    assert listed["displayName"] == "by hand" and listed["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] == "1"
    job_id = listed["name"].rsplit("/", 1)[1]
    gcloud(cloud, "cancel", job_id)
    assert json.loads(gcloud(cloud, "describe", job_id))["state"] == "JOB_STATE_CANCELLED"
    assert [request for request in cloud.server.proxied if not request.allowed] == []
    assert all("gcloud" in entry.user_agent for entry in cloud.server.access_log.entries())
