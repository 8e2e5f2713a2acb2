"""GCPC's launchers, unmodified, in pipelines that the local Vertex executes: proxy and certificates lead them there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from rehearsal.gcs import BucketServer
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.cloud import Cloud
from tests.rehearsal.execution.world import LIMIT_S, detail, states

# Writes what it was given where it was told to, and ends or stays.
SAY = """
import json, os, sys, time
with open(os.path.join(sys.argv[1], "said"), "w") as stream:
    json.dump([sys.argv[2], os.environ["VALUE"], os.environ["AIP_MODEL_DIR"]], stream)
if "stay" in sys.argv[2]:
    time.sleep(600)
"""


@pytest.fixture
def cloud(tmp_path: Path, bucket: BucketServer) -> Iterator[Cloud]:
    with Cloud(tmp_path, bucket) as made:
        yield made


def _jobs(cloud: Cloud) -> list[Any]:
    return [one for one in cloud.store.list("projects/") if isinstance(one, aiplatform_v1.CustomJob)]


@pytest.mark.slow
def test_a_custom_job_by_its_launcher(cloud: Cloud, tmp_path: Path) -> None:
    text = 'a "quoted"\nvalue of {{$.nobody}} \\'
    name = cloud.submit(graphs.trained, code=SAY, text=text, folder=str(tmp_path), strategy="SPOT")
    job = cloud.wait(name)
    assert states(job) == {"": "SUCCEEDED", "custom-training-job": "SUCCEEDED"}, "\n".join(cloud.logs.texts())
    assert json.loads((tmp_path / "said").read_text()) == [f"given: {text}", text, "gs://line/out/model/"]
    (custom,) = _jobs(cloud)
    (pool,) = custom.job_spec.worker_pool_specs
    assert pool.machine_spec.accelerator_count == 1
    assert pool.disk_spec.boot_disk_size_gb == 200
    assert custom.job_spec.scheduling.strategy.name == "SPOT"
    resources = json.loads(detail(job, "custom-training-job").execution.metadata["output:gcp_resources"])
    assert resources["resources"][0]["resourceUri"].endswith(custom.name)
    assert cloud.server.access_log


@pytest.mark.slow
def test_cancel_ends_what_the_launcher_started(cloud: Cloud, tmp_path: Path) -> None:
    name = cloud.submit(graphs.trained, code=SAY, text="stay", folder=str(tmp_path), strategy="SPOT")
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "said").exists():
        assert time.monotonic() < deadline
        assert not cloud.store.get(name).end_time, "\n".join(cloud.logs.texts())
        time.sleep(0.05)
    cloud.client(aiplatform_v1.PipelineServiceClient).cancel_pipeline_job(name=name)
    job = cloud.wait(name)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_CANCELLED
    (custom,) = _jobs(cloud)
    assert custom.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
