"""Custom jobs: what machines are told, stockouts, cancelling, time-outs, the end of everything."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1

from rehearsal.jobs import custom_jobs
from rehearsal.jobs.market import Market
from rehearsal.machines.machine import Scale
from rehearsal.machines.processes import MARK_VARIABLE
from tests.rehearsal.jobs.jobs import COUNT, TELL, TRAIN, Jobs
from tests.rehearsal.world import LIMIT_S


def test_what_machines_are_told(jobs: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "said"
    folder.mkdir()
    job = jobs.run(TELL, str(folder), nodes=2, base="gs://line/out")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert job.start_time <= job.end_time
    first, second = (json.loads((folder / f"workerpool{pool}-0.json").read_text()) for pool in (0, 1))
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
    assert first["GIVEN"] == 'a "python3" \n'
    # A report can tell of every variable that is no Vertex's.
    ours = {name for name in first if name.startswith("SHARDLINE_")} - {MARK_VARIABLE}
    assert ours <= set(jobs.runs.scale.variables)
    assert Path(first["python"]).samefile(sys.executable)
    assert first["args"] == ["-c", str(folder)]
    assert not list((tmp_path / "jobs").rglob("disk-*"))


def test_the_end_of_the_cloud_waits_for_no_notice(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    jobs = make_jobs(scale=Scale(time_scale=100.0))
    name = jobs.submit(TRAIN, "2", str(tmp_path / "steps"), "1", "wait")
    jobs.store.wait(name, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    closing = threading.Thread(target=jobs.runs.close, daemon=True)
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()


def test_stockouts(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    jobs = make_jobs(market=(market := Market(stockouts=["europe-west4"])))
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert job.error.code == 8
    assert "insufficient" in job.error.message
    market.end_stockouts()
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT").state.name == "JOB_STATE_SUCCEEDED"


def test_a_fault_of_ours_fails_the_job_and_nothing_begins_after_the_end(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_jobs, "JobMachines", None)
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0")
    assert (job.state, job.error.code) == (aiplatform_v1.JobState.JOB_STATE_FAILED, 13)
    assert len(jobs.runs.failures) == 1 and "NoneType" in jobs.runs.failures[0]
    monkeypatch.undo()
    jobs.runs.close()
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0").state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not (tmp_path / "starts").exists()


def test_a_job_has_a_timeout(make_jobs: Callable[..., Jobs]) -> None:
    jobs = make_jobs()
    job = jobs.run("import time; time.sleep(600)", timeout={"seconds": 1})
    assert job.error.code == 4
    assert "timeout of 1 s" in job.error.message
