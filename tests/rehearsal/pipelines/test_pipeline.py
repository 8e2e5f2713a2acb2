"""Compiled pipelines executed by the process of their own: values, states, files, cancellation, faults."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1

from contracts import storage
from rehearsal.gcs import BucketServer
from rehearsal.machines.processes import MARK_VARIABLE, find_marked
from rehearsal.pipelines import pipeline_runs
from rehearsal.pipelines.job import Job
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.world import LIMIT_S, PARENT, Pipelines, detail, states


def heard(job: object, name: str) -> list[str]:
    said = json.loads(detail(job, name).execution.metadata["output:heard"])
    assert isinstance(said, list)
    return said


def test_values_reach_a_command_as_they_are(pipelines: Pipelines) -> None:
    text = 'a "quoted" text,\nits {{$.newline}} and python3 \\ too'
    job = pipelines.run(graphs.values, text=text, number=3)
    assert states(job) == {"": "SUCCEEDED", "say": "SUCCEEDED"}, pipelines.orchestrator_log()
    said = heard(job, "say")
    assert said[0] == f"a python3 of {text}"
    assert said[1] == "3"
    assert json.loads(said[2]) == {"args": ["--x", text, 1], "count": 2, "nested": {"text": f"is {text}!"}}
    assert "1.0" not in said[2]


def test_placeholders_of_the_run(pipelines: Pipelines) -> None:
    pipelines.store.scheduled_s[f"{PARENT}/pipelineJobs/run-1"] = 1_800_000_000
    job = pipelines.run(graphs.places)
    name, resource, created, scheduled, project, location, persistent = heard(job, "say-places")
    assert (name, resource) == ("run-1", f"{PARENT}/pipelineJobs/run-1")
    assert created.endswith("Z")
    assert scheduled == "2027-01-15T08:00:00Z"
    assert (project, location, persistent) == ("acme-vision", "europe-west4", "")


def test_exit_handler_and_tasks_that_ignore_failure(pipelines: Pipelines) -> None:
    job = pipelines.run(graphs.failing)
    found = states(job)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_FAILED
    assert found["exit-handler-1"] == found["exit-handler-1.fail"] == "FAILED"
    assert found["exit-handler-1.write"] == "NOT_TRIGGERED"
    assert found["exit-handler-1.write-2"] == found["exit-handler-1.say"] == found["final"] == "SUCCEEDED"
    error = detail(job, "exit-handler-1.fail").error
    assert error.code == 9
    assert "exit code 7" in error.message
    assert "what went wrong" in error.message
    status = json.loads(detail(job, "final").execution.metadata["output:heard"])
    assert (status["state"], status["pipelineTaskName"]) == ("FAILED", "exit-handler-1")
    assert status["pipelineJobResourceName"] == job.name
    assert "fail" in status["error"]["message"]
    lines = pipelines.logs.texts(pipeline_task_name="exit-handler-1.fail")
    assert lines == ["what went wrong"]


def test_a_mail_is_told_in_the_log(pipelines: Pipelines) -> None:
    job = pipelines.run(graphs.mailed)
    assert set(states(job).values()) == {"SUCCEEDED"}, pipelines.orchestrator_log()
    lines = pipelines.logs.texts(pipeline_task_name="vertex-pipelines-notification-email")
    assert lines == ["mail to a@b.c, d@e.f: the run SUCCEEDED"]


def test_what_a_task_gives_is_passed_on(pipelines: Pipelines, bucket_environment: BucketServer) -> None:
    job = pipelines.run(graphs.artifacts, text="a text")
    assert set(states(job).values()) == {"SUCCEEDED"}, pipelines.orchestrator_log()
    (made,) = detail(job, "make-text").outputs["made"].artifacts
    document = json.loads(detail(job, "read-text").execution.metadata["output:heard"])
    (taken,) = document["inputs"]["artifacts"]["made"]["artifacts"]
    assert made.uri == taken["uri"] == "gs://line/made"
    assert taken["metadata"] == dict(made.metadata) == {"text": "a text"}
    root = f"gs://line/{pipelines.folder.name}/123456789012/run-1/read-text_{detail(job, 'read-text').task_id}"
    assert json.loads(storage.read_bytes(f"{root}/heard")) == document
    assert document["outputs"]["parameters"]["heard"]["outputFile"].endswith(f"{root.removeprefix('gs:/')}/heard")
    assert not Path("gs:").exists()


def test_cancel_leaves_no_process(pipelines: Pipelines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_runs, "CANCEL_GRACE_S", 0.5)
    name = pipelines.submit(graphs.long, pid_file=str(tmp_path / "pid"))
    files = [tmp_path / "pid", tmp_path / "pid.deep"]
    deadline = time.monotonic() + LIMIT_S
    while not all(path.exists() and path.read_text().strip() for path in files):
        assert time.monotonic() < deadline, pipelines.orchestrator_log()
        time.sleep(0.05)
    pids = [int(path.read_text()) for path in files]
    assert set(pids) <= set(find_marked(MARK_VARIABLE))
    pipelines.runs.cancel(name)
    job = pipelines.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_CANCELLED
    assert states(job) == {"": "CANCELLED", "sleep": "CANCELLED"}
    for pid in pids:
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(), pid
        assert pid != os.getpid()


def test_an_orchestrator_that_is_killed_fails_its_run(pipelines: Pipelines, tmp_path: Path) -> None:
    name = pipelines.submit(graphs.long, pid_file=str(tmp_path / "pid"))
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "pid.deep").exists():
        assert time.monotonic() < deadline, pipelines.orchestrator_log()
        time.sleep(0.05)
    # A run's process has the folder among its arguments, its containers have it in their environment.
    started = f"rehearsal.pipelines.pipeline\0{tmp_path}".encode()
    (found,) = [pid for pid in find_marked(MARK_VARIABLE) if started in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(found, signal.SIGKILL)
    job = pipelines.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_FAILED
    assert "orchestrator ended with exit code -9" in job.error.message
    assert states(job) == {"": "FAILED", "sleep": "FAILED"}
    assert find_marked(str(tmp_path)) == []


def test_a_fault_of_ours_fails_the_run(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "write", None)
    job = pipelines.run(graphs.places)
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_FAILED
    assert job.error.code == 13
    assert "NoneType" in job.error.message
    assert len(pipelines.runs.failures) == 1 and "NoneType" in pipelines.runs.failures[0]
    pipelines.runs.close()
    monkeypatch.undo()
    # Nothing is begun after the end.
    assert pipelines.run(graphs.places, run="run-2").state == aiplatform_v1.PipelineState.PIPELINE_STATE_CANCELLED


def test_a_run_that_cannot_be_started_leaves_no_descriptor(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One run before: what libraries open once is open.
    monkeypatch.setattr(pipelines.runs, "_start_child", None)
    pipelines.run(graphs.places)
    # What other tests left to the collector may go at any time: then fewer are open, never more.
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        pipelines.run(graphs.places, run=f"run-{number + 2}")
    pipelines.runs.close()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert len(pipelines.runs.failures) == 6


def test_what_a_killed_launcher_had_started_ends_with_the_run(
    tmp_path: Path, make_pipelines: Callable[..., Pipelines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_runs, "CANCEL_GRACE_S", 0.5)
    ended: list[str] = []

    def cancel(name: str) -> None:
        ended.append(name)
        state = aiplatform_v1.JobState.JOB_STATE_CANCELLED
        pipelines.store.update(name, lambda job: setattr(job, "state", state))

    pipelines = make_pipelines(cancel_resource=cancel)
    custom = "projects/123456789012/locations/europe-west4/customJobs/7"
    pipelines.store.add(custom, aiplatform_v1.CustomJob(name=custom))
    # By the project's id, as launchers are given it.
    uri = "https://europe-west4-aiplatform.googleapis.com/v1/projects/acme-vision/locations/europe-west4/customJobs/7"
    resource = json.dumps({"resources": [{"resourceType": "CustomJob", "resourceUri": uri}]})
    name = pipelines.submit(graphs.hanging, resource=resource, marker=str(tmp_path / "up"))
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline, pipelines.orchestrator_log()
        time.sleep(0.05)
    pipelines.runs.cancel(name)
    assert pipelines.runs.wait(name, LIMIT_S).state == aiplatform_v1.PipelineState.PIPELINE_STATE_CANCELLED
    assert ended == [custom]
