"""The training itself on machines that are taken away: it ends with the parameters of one that was let alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from contracts import storage
from contracts.artifacts import CheckpointManifest
from pipelines.rehearse.steps import StepWatch
from rehearsal.gcs import BucketServer
from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.market import Market, spread
from rehearsal.machines.machine import Scale
from rehearsal.resources.store import Store
from tests.conftest import small_config
from tests.rehearsal.execution.world import LIMIT_S, Clock, Logs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PARENT = "projects/123456789012/locations/europe-west4"
NODES = 2


def _train(folder: Path, shards: str, output: str, market: Market) -> Logs:
    """Train on machines of one rank each; return what they said."""
    sections = small_config(train={"epochs": 120}, checkpoint={"every_steps": 20})
    config = {name: sections[name] for name in ("run", "data", "model", "train", "checkpoint") if name in sections}
    pool = {
        "machine_spec": {"machine_type": "g2-standard-12"},
        "container_spec": {
            "image_uri": "europe-west4-docker.pkg.dev/acme/images/trainer@sha256:" + "0" * 64,
            "command": ["python", "-m", "trainer.task"],
            "args": ["--output", output, "--shards", shards, "--config-json", json.dumps(config)],
        },
    }
    pools = [{**pool, "replica_count": count} for count in (1, NODES - 1)]
    job = aiplatform_v1.CustomJob(
        name=f"{PARENT}/customJobs/1",
        display_name="digits-train",
        job_spec={
            "worker_pool_specs": pools,
            "scheduling": {"strategy": "SPOT", "restart_job_on_worker_restart": True},
        },
        state=aiplatform_v1.JobState.JOB_STATE_PENDING,
    )
    store, logs = Store(), Logs()
    store.add(job.name, job)
    runs = CustomJobRuns(
        store,
        folder=folder,
        logs=logs,
        clock=Clock(),
        market=market,
        scale=Scale(processes_per_node=1, time_scale=0.3),
        environment=_clients(),
    )
    try:
        runs.start(job.name)
        ended: Any = runs.wait(job.name, LIMIT_S)
    finally:
        runs.close()
    assert ended.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED, "\n".join(logs.texts())
    return logs


def _clients() -> dict[str, str]:
    import os

    names = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "NO_PROXY", "no_proxy")
    return {name: os.environ[name] for name in (*names, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")}


def test_preempted_twice_it_ends_the_same(small_shards: str, bucket_server: BucketServer, tmp_path: Path) -> None:
    whole, cut = "gs://bucket-1/line/train/whole", "gs://bucket-1/line/train/cut"
    market = Market(watch=StepWatch, preemptions=spread(2, seed=3, nodes=NODES, job="train"))
    logs = _train(tmp_path / "cut", small_shards, cut, market)
    assert market.missing == 0, "\n".join(logs.texts())
    first, second = market.preempted
    assert {first.kind, second.kind} == {"sigterm", "sigkill"}
    assert first.node == 0
    _train(tmp_path / "whole", small_shards, whole, Market())
    expected, found = CheckpointManifest.load(whole), CheckpointManifest.load(cut)
    assert 0 < first.step < second.step < found.step
    assert found.parameters_sha256 == expected.parameters_sha256
    assert storage.exists(storage.join(cut, "manifest.json"))
