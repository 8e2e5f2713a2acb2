"""GCPC's launchers, unmodified, in pipelines that the local Vertex executes: proxy and certificates lead them there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1

from rehearsal.cloud import LocalCloud
from tests.rehearsal import graphs
from tests.rehearsal.world import detail, run, states, texts

# Writes what it was given where it was told to.
SAY = """
import json, os, sys
with open(os.path.join(sys.argv[1], "said"), "w") as stream:
    json.dump([sys.argv[2], os.environ["VALUE"], os.environ["AIP_MODEL_DIR"]], stream)
"""


@pytest.mark.slow
def test_a_custom_job_by_its_launcher(local_cloud: LocalCloud, tmp_path: Path) -> None:
    text = 'a "quoted"\nvalue of {{$.nobody}} \\'
    job = run(local_cloud, graphs.trained, code=SAY, text=text, folder=str(tmp_path), strategy="SPOT")
    assert states(job) == {"": "SUCCEEDED", "custom-training-job": "SUCCEEDED"}, texts(local_cloud.logs)
    assert json.loads((tmp_path / "said").read_text()) == [f"given: {text}", text, "gs://line/out/model/"]
    (custom,) = local_cloud.store.list("projects/", aiplatform_v1.CustomJob)
    (pool,) = custom.job_spec.worker_pool_specs
    assert pool.machine_spec.accelerator_count == 1
    assert pool.disk_spec.boot_disk_size_gb == 200
    assert custom.job_spec.scheduling.strategy.name == "SPOT"
    resources = json.loads(detail(job, "custom-training-job").execution.metadata["output:gcp_resources"])
    assert resources["resources"][0]["resourceUri"].endswith(custom.name)
