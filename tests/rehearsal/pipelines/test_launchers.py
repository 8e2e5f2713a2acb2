"""GCPC's launchers, unmodified, in pipelines that the local Vertex executes: proxy and certificates lead them there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from rehearsal.cloud import LocalCloud
from rehearsal.servers.access import Caller
from rehearsal.vertex import pipeline_jobs
from tests.rehearsal import graphs
from tests.rehearsal.world import detail, run, states, submit, texts, wait_for_end, wait_until

# Writes what it was given where it was told to, and ends or stays.
SAY = """
import json, os, sys, time
with open(os.path.join(sys.argv[1], "said"), "w") as stream:
    json.dump([sys.argv[2], os.environ["VALUE"], os.environ["AIP_MODEL_DIR"]], stream)
if "stay" in sys.argv[2]:
    time.sleep(600)
"""


def _jobs(local_cloud: LocalCloud) -> list[Any]:
    return [one for one in local_cloud.store.list("projects/") if isinstance(one, aiplatform_v1.CustomJob)]


@pytest.mark.slow
def test_a_custom_job_by_its_launcher(local_cloud: LocalCloud, tmp_path: Path) -> None:
    text = 'a "quoted"\nvalue of {{$.nobody}} \\'
    job = run(local_cloud, graphs.trained, code=SAY, text=text, folder=str(tmp_path), strategy="SPOT")
    assert states(job) == {"": "SUCCEEDED", "custom-training-job": "SUCCEEDED"}, texts(local_cloud.logs)
    assert json.loads((tmp_path / "said").read_text()) == [f"given: {text}", text, "gs://line/out/model/"]
    (custom,) = _jobs(local_cloud)
    (pool,) = custom.job_spec.worker_pool_specs
    assert pool.machine_spec.accelerator_count == 1
    assert pool.disk_spec.boot_disk_size_gb == 200
    assert custom.job_spec.scheduling.strategy.name == "SPOT"
    resources = json.loads(detail(job, "custom-training-job").execution.metadata["output:gcp_resources"])
    assert resources["resources"][0]["resourceUri"].endswith(custom.name)


@pytest.mark.slow
def test_cancel_ends_what_the_launcher_started(local_cloud: LocalCloud, tmp_path: Path) -> None:
    values = {"code": SAY, "text": "stay", "folder": str(tmp_path), "strategy": "SPOT"}
    name = submit(local_cloud, graphs.trained, "run-1", **values)
    wait_until((tmp_path / "said").exists, lambda: texts(local_cloud.logs))
    request = pipeline_jobs.types.CancelPipelineJobRequest(name=name)
    pipeline_jobs.cancel(local_cloud.vertex.state, request, Caller("grpc"))
    job = wait_for_end(local_cloud.store, name)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_CANCELLED
    (custom,) = _jobs(local_cloud)
    assert custom.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
