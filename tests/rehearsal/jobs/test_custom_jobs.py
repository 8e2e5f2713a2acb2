"""Custom jobs: what machines are told, stockouts, cancelling, time-outs, the end of everything."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from rehearsal.jobs import custom_jobs
from rehearsal.jobs.market import Market, Stockout
from rehearsal.machines.machine import Scale
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.resources.quotas import Quotas
from tests.rehearsal.execution.world import LIMIT_S
from tests.rehearsal.jobs.jobs import COUNT, IMAGE, PARENT, TELL, Jobs

NETWORKS = ("loopback", "namespaces")


def test_what_machines_are_told(jobs: Jobs, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    job = jobs.run(TELL, str(said), nodes=2, base="gs://line/out")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert job.start_time <= job.end_time
    first, second = (json.loads((said / f"workerpool{pool}-0.json").read_text()) for pool in (0, 1))
    cluster = json.loads(first["CLUSTER_SPEC"])["cluster"]
    assert [len(cluster[name]) for name in ("workerpool0", "workerpool1")] == [1, 1]
    assert cluster == json.loads(second["CLUSTER_SPEC"])["cluster"]
    assert first["CLOUD_ML_JOB_ID"] == second["CLOUD_ML_JOB_ID"] == job.name.rpartition("/")[2]
    for name in ("HOME", "TMPDIR", "cwd"):
        assert first[name] != second[name]
        assert first[name].startswith(str(tmp_path / "jobs"))
    assert len(first["socket"]) < 100
    assert int(first["OMP_NUM_THREADS"]) >= 1
    assert first["AIP_MODEL_DIR"] == "gs://line/out/model/"
    assert (first["EXTRA"], first["GIVEN"]) == ("more", 'a "python3" \n')
    # A report can tell of every variable that is no Vertex's.
    ours = {name for name in first if name.startswith("SHARDLINE_")} - {MARK_VARIABLE}
    assert ours <= set(jobs.runs.scale.variables)
    assert Path(first["python"]).samefile(sys.executable)
    assert first["args"] == ["-c", str(said)]
    assert not list((tmp_path / "jobs").rglob("disk-*"))


def test_cancel_and_close_end_all(jobs: Jobs, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    (said / "more").mkdir()
    name = jobs.submit("import time; time.sleep(600)", nodes=2)
    jobs.store.wait(name, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    jobs.runs.cancel(name)
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED


def test_stockouts(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(stockouts=[Stockout("europe-west4", "SPOT", "g2-standard-12", jobs=1)], stockout="fail")
    jobs = make_jobs(market=market)
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert job.error.code == 8
    assert "insufficient" in job.error.message
    # The next one finds machines, and so does another strategy.
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT").state.name == "JOB_STATE_SUCCEEDED"


def test_a_job_that_waits_for_machines_never_runs(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    asked = threading.Event()

    class Told(Market):
        def take_stockout(self, *given: Any) -> Stockout | None:
            try:
                return super().take_stockout(*given)
            finally:
                asked.set()

    jobs = make_jobs(market=Told(stockouts=[Stockout("europe-west4", "SPOT")]))
    name = jobs.submit(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT")
    assert asked.wait(LIMIT_S)
    jobs.runs.cancel(name)
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not job.start_time
    assert not (tmp_path / "starts").exists()


def test_a_fault_of_ours_fails_the_job_and_nothing_begins_after_the_end(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_jobs, "Gang", None)
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0")
    assert (job.state, job.error.code) == (aiplatform_v1.JobState.JOB_STATE_FAILED, 13)
    assert len(jobs.runs.failures) == 1 and "NoneType" in jobs.runs.failures[0]
    monkeypatch.undo()
    jobs.runs.close()
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0").state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not (tmp_path / "starts").exists()


def test_an_image_that_is_not_there_and_a_command_that_is_not(make_jobs: Callable[..., Jobs]) -> None:
    jobs = make_jobs(missing_images=frozenset({IMAGE}))
    assert IMAGE in jobs.run(COUNT, "x", "0").error.message
    name = f"{PARENT}/customJobs/1"
    pool = {"replica_count": 1, "container_spec": {"image_uri": "image", "args": ["x"]}}
    jobs.store.add(name, aiplatform_v1.CustomJob(name=name, job_spec={"worker_pool_specs": [pool]}))
    jobs.runs.start(name)
    assert "entry point" in jobs.runs.wait(name, LIMIT_S).error.message


def test_a_job_has_a_timeout_and_flex_start_a_limit(make_jobs: Callable[..., Jobs]) -> None:
    market = Market(stockouts=[Stockout("europe-west4", "FLEX_START")])
    jobs = make_jobs(market=market, scale=Scale(time_scale=0.1))
    job = jobs.run("import time; time.sleep(600)", timeout={"seconds": 1})
    assert job.error.code == 4
    assert "timeout of 1 s" in job.error.message
    job = jobs.run(COUNT, "x", "0", strategy="FLEX_START", max_wait_duration={"seconds": 2})
    assert job.error.code == 8
    assert not job.start_time


def test_a_job_over_its_quota_is_queued_until_another_ends(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    metric = "custom_model_training_preemptible_g2_cpus"
    jobs = make_jobs(quotas=Quotas({metric: {"europe-west4": 24}}))
    queued = aiplatform_v1.JobState.JOB_STATE_QUEUED
    code = f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.02)"
    first = jobs.submit(code, strategy="SPOT", nodes=2)
    jobs.store.wait(first, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    others = [jobs.submit(code, strategy="SPOT") for _ in range(3)]
    for name in others:
        jobs.store.wait(name, lambda job: job.state == queued, LIMIT_S)
    # On demand is another metric.
    free = jobs.submit(code)
    jobs.store.wait(free, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    jobs.runs.cancel(others[0])
    assert jobs.runs.wait(others[0], LIMIT_S).state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert jobs.store.get(others[1]).state == queued and not jobs.store.get(others[1]).start_time
    (tmp_path / "go").touch()
    for name in (first, free, *others[1:]):
        assert jobs.runs.wait(name, LIMIT_S).state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED


def test_jobs_that_come_together_hold_no_more_than_the_quota() -> None:
    metric = "custom_model_training_g2_cpus"
    pool = {"machine_spec": {"machine_type": "g2-standard-12"}, "replica_count": 1}
    job = aiplatform_v1.CustomJob(job_spec={"worker_pool_specs": [pool]})

    class Slow(Quotas):
        def _find_exceeded(self, *given: Any) -> list[str]:
            found = super()._find_exceeded(*given)
            # Another thread gets its turn between the check and what follows.
            time.sleep(0.01)
            return found

    quotas = Slow({metric: {"us-central1": 36}})
    ready = threading.Barrier(20)

    def take(number: int) -> bool:
        ready.wait()
        return quotas.take(str(number), job, "us-central1")

    with ThreadPoolExecutor(20) as pool_of_threads:
        taken = list(pool_of_threads.map(take, range(20)))
    assert sum(taken) == 3
    quotas.give_back(str(taken.index(True)))
    assert quotas.take("another", job, "us-central1")


def test_a_zone_without_machines_is_no_stockout_of_its_region(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(stockouts=[Stockout("europe-west4-a"), Stockout("us-east4")], stockout="fail", slow_start_s=1)
    jobs = make_jobs(market=market)
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0").state.name == "JOB_STATE_SUCCEEDED"
    assert market.struck == [(Stockout("europe-west4-a"), "train-digits")]


def test_machines_that_come_slowly_leave_a_job_pending(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    jobs = make_jobs(market=Market(slow_start_s=1e6))
    name = jobs.submit(COUNT, str(tmp_path / "starts"), "0")
    jobs.runs.cancel(name)
    assert jobs.runs.wait(name, LIMIT_S).state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not (tmp_path / "starts").exists()


def test_the_error_of_a_failed_job_is_set_a_minute_after_its_end(
    make_jobs: Callable[..., Jobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_jobs, "ERROR_DELAY_S", 1e6)
    jobs = make_jobs()
    name = jobs.submit(COUNT, str(tmp_path / "starts"), "2")
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED and job.end_time
    assert not job.error.code
    jobs.runs.close()
    assert jobs.store.get(name).error.code == 3
