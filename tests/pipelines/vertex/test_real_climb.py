"""The ladder over jobs that are really executed, by Google's launcher, on a market that has no machines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from contracts.canonical import canonical
from rehearsal.cloud import LocalCloud
from rehearsal.jobs.market import Market, Stockout
from rehearsal.machines.machine import Scale

pytestmark = pytest.mark.slow
PROJECT, REGION, MACHINE = "shardline-test", "us-central1", "g2-standard-12"
IMAGE = "us-docker.pkg.dev/acme/images/any@sha256:" + "0" * 64


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
    from kfp import compiler, dsl

    @dsl.pipeline(name="tiny")  # type: ignore[untyped-decorator]
    def tiny(strategy: str) -> None:
        container = {"image_uri": IMAGE, "command": ["python", "-c", "print('step 1')"]}
        accelerator = {"accelerator_type": "NVIDIA_L4", "accelerator_count": 1}
        machine = {"machine_type": MACHINE, **accelerator}
        pool = {"machine_spec": machine, "replica_count": 1, "container_spec": container}
        CustomTrainingJobOp(
            display_name="train",
            project="{{$.pipeline_google_cloud_project_id}}",
            location="{{$.pipeline_google_cloud_location}}",
            worker_pool_specs=[pool],
            strategy=strategy,
        )

    folder = tmp_path_factory.mktemp("spec")
    compiler.Compiler().compile(tiny, str(folder / "tiny.yaml"))
    found: dict[str, Any] = canonical(yaml.safe_load((folder / "tiny.yaml").read_text()))
    (folder / "tiny.json").write_text(json.dumps(found))
    return str(folder / "tiny.json")


def climb(
    folder: Path,
    spec: str,
    *,
    stockout: Literal["pending", "fail"] = "pending",
    without: tuple[str, ...] = (),
) -> tuple[dict[str, Any], LocalCloud]:
    """Climb SPOT, STANDARD where some strategies find no machines; return what the command came to."""
    config = {
        "run": {"name": "tiny", "root": "gs://acme-line/lines"},
        "cloud": {"project": PROJECT, "region": REGION},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    stockouts = [Stockout(REGION, strategy, MACHINE) for strategy in without]
    market = Market(stockouts=stockouts, stockout=stockout)
    cloud = LocalCloud(
        folder / "cloud",
        projects={PROJECT: "123456789012"},
        buckets=["acme-line"],
        market=market,
        scale=Scale(time_scale=0.1),
    )
    with cloud:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.pipelines.vertex.climb_child", spec, str(path), "run-1"],
            env={**os.environ, **cloud.environment},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, cloud


def states(cloud: LocalCloud, kind: str) -> list[str]:
    return sorted(job.state.name for job in cloud.store.list("projects/") if f"/{kind}/" in job.name)


def test_a_job_that_stays_pending_is_cancelled_and_the_next_rung_succeeds(tmp_path: Path, spec: str) -> None:
    found, cloud = climb(tmp_path, spec, without=("SPOT",))
    assert found == {"exit_code": 0, "runs": ["run-1", "run-1-r2"], "cause": ""}
    assert states(cloud, "customJobs") == ["JOB_STATE_CANCELLED", "JOB_STATE_SUCCEEDED"]
    assert states(cloud, "pipelineJobs") == ["PIPELINE_STATE_CANCELLED", "PIPELINE_STATE_SUCCEEDED"]


def test_a_stockout_that_fails_the_job_climbs_too(tmp_path: Path, spec: str) -> None:
    found, cloud = climb(tmp_path, spec, stockout="fail", without=("SPOT",))
    assert found == {"exit_code": 0, "runs": ["run-1", "run-1-r2"], "cause": ""}
    assert states(cloud, "customJobs") == ["JOB_STATE_FAILED", "JOB_STATE_SUCCEEDED"]


def test_a_stockout_everywhere_is_try_again(tmp_path: Path, spec: str) -> None:
    found, _ = climb(tmp_path, spec, stockout="fail", without=("SPOT", "STANDARD"))
    assert found == {"exit_code": 75, "runs": ["run-1", "run-1-r2"], "cause": "stockout"}
