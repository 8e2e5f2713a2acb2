"""Compiled pipelines, executed: values, states, files, cancelling, faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from rehearsal.cloud import BUCKETS_FOLDER, LocalCloud
from rehearsal.machines.machine import Scale
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines import runs, tasks
from tests.rehearsal import graphs
from tests.rehearsal.world import (
    NUMBER,
    PARENT,
    PROJECT,
    detail,
    find_marked,
    run,
    states,
    submit,
    texts,
    wait_for_end,
    wait_until,
)

STATE: Any = aiplatform_v1.PipelineState


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A cloud with an empty bucket `line`, for all tests that leave it as it was."""
    folder, scale = tmp_path_factory.mktemp("cloud") / "cloud", Scale(time_scale=0.01)
    with LocalCloud(folder, projects={PROJECT: NUMBER}, buckets=["line"], scale=scale) as found:
        yield found


def heard(job: Any, name: str) -> list[str]:
    values = json.loads(detail(job, name).execution.metadata["output:heard"])
    assert isinstance(values, list)
    return values


def test_values_reach_a_command_as_they_are(cloud: LocalCloud) -> None:
    text = 'a "quoted" text,\nits {{$.newline}} and python3 \\ too'
    job = run(cloud, graphs.values, text=text, number=3)
    assert states(job) == {"": "SUCCEEDED", "say": "SUCCEEDED"}, texts(cloud.logs)
    values = heard(job, "say")
    assert values[:2] == [f"a python3 of {text}", "3"]
    assert json.loads(values[2]) == {"args": ["--x", text, 1], "count": 2, "nested": {"text": f"is {text}!"}}
    assert "1.0" not in values[2]


def test_placeholders_of_the_run(cloud: LocalCloud) -> None:
    cloud.store.scheduled_s[f"{PARENT}/pipelineJobs/run-1"] = 1_800_000_000
    job = run(cloud, graphs.places, run="run-1")
    name, resource, created, scheduled, project, location, persistent = heard(job, "say-places")
    assert (name, resource) == ("run-1", f"{PARENT}/pipelineJobs/run-1")
    assert created.endswith("Z") and scheduled == "2027-01-15T08:00:00Z"
    assert (project, location, persistent) == ("acme-vision", "europe-west4", "")


def test_exit_handler_and_tasks_that_ignore_failure(cloud: LocalCloud) -> None:
    job = run(cloud, graphs.failing)
    found = states(job)
    assert job.state == STATE.PIPELINE_STATE_FAILED
    assert found["exit-handler-1"] == found["exit-handler-1.fail"] == "FAILED"
    assert found["exit-handler-1.write"] == "NOT_TRIGGERED"
    assert found["exit-handler-1.write-2"] == found["exit-handler-1.say"] == found["final"] == "SUCCEEDED"
    error = detail(job, "exit-handler-1.fail").error
    assert error.code == 9 and "exit code 7" in error.message and "what went wrong" in error.message
    status = json.loads(detail(job, "final").execution.metadata["output:heard"])
    assert (status["state"], status["pipelineTaskName"]) == ("FAILED", "exit-handler-1")
    assert status["pipelineJobResourceName"] == job.name and "fail" in status["error"]["message"]
    assert texts(cloud.logs, pipeline_task_name="exit-handler-1.fail") == ["what went wrong"]


def test_a_mail_is_a_line_of_the_log(cloud: LocalCloud) -> None:
    job = run(cloud, graphs.mailed)
    assert set(states(job).values()) == {"SUCCEEDED"}, texts(cloud.logs)
    lines = texts(cloud.logs, pipeline_task_name="vertex-pipelines-notification-email")
    assert lines == ["mail to a@b.c, d@e.f: the run SUCCEEDED"]


def test_artifacts_are_passed_on_and_files_go_to_the_bucket(cloud: LocalCloud) -> None:
    job = run(cloud, graphs.artifacts, text="a text")
    assert set(states(job).values()) == {"SUCCEEDED"}, texts(cloud.logs)
    (made,) = detail(job, "make-text").outputs["made"].artifacts
    document = json.loads(detail(job, "read-text").execution.metadata["output:heard"])
    (taken,) = document["inputs"]["artifacts"]["made"]["artifacts"]
    assert made.uri == taken["uri"] == "gs://line/made"
    assert taken["metadata"] == dict(made.metadata) == {"text": "a text"}
    root = f"line/root/{NUMBER}/{job.name.rpartition('/')[2]}/read-text_{detail(job, 'read-text').task_id}"
    assert json.loads((cloud.folder / BUCKETS_FOLDER / root / "heard").read_text()) == document
    assert document["outputs"]["parameters"]["heard"]["outputFile"].endswith(f"{root}/heard")


@pytest.mark.parametrize(
    ("metadata", "name", "expected"),
    [
        ('{"accuracy": NaN}', "", "NaN is no JSON number"),
        ('{"text": "more than the limit"}', "", "the metadata of artifact metrics has more than 20 characters"),
        ("{}", "mine", "artifact metrics was given the name 'mine' by its task"),
    ],
)
def test_a_task_whose_output_cannot_be_kept_fails(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, metadata: str, name: str, expected: str
) -> None:
    monkeypatch.setattr(tasks, "METADATA_LIMIT", 20)
    job = run(cloud, graphs.told, metadata=metadata, name=name)
    assert expected in detail(job, "tell").error.message


def test_cancelling_leaves_no_process(cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CANCEL_GRACE_S", 0.5)
    name = submit(cloud, graphs.long, "cancelled-1", pid_file=str(tmp_path / "pid"))
    files = [tmp_path / "pid", tmp_path / "pid.deep"]
    wait_until(lambda: all(path.exists() and path.read_text().strip() for path in files))
    pids = [int(path.read_text()) for path in files]
    assert set(pids) <= set(find_marked(MARK_VARIABLE))
    cloud.pipelines.cancel(name)
    job = wait_for_end(cloud.store, name)
    assert job.state == STATE.PIPELINE_STATE_CANCELLED
    assert states(job) == {"": "CANCELLED", "sleep": "CANCELLED"}
    assert not set(pids) & set(find_marked(MARK_VARIABLE))


def test_a_cancelled_run_begins_nothing_more(
    cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CANCEL_GRACE_S", 0.5)
    name = submit(cloud, graphs.two, "cancelled-2", pid_file=str(tmp_path / "pid"))
    wait_until((tmp_path / "pid").exists)
    cloud.pipelines.cancel(name)
    found = states(wait_for_end(cloud.store, name))
    assert found["exit-handler-1.sleep"] == "CANCELLED"
    # "the task with the trigger policy at ALL_UPSTREAM_TASKS_COMPLETED will not start when job cancellation is in
    # progress" (pipeline_spec.proto, TriggerStrategy).
    assert found["final"] == found["exit-handler-1.say"] == "NOT_TRIGGERED"


def test_a_fault_of_ours_fails_the_run_and_nothing_begins_after_the_end(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(runs, "Walk", None)
        job = run(local_cloud, graphs.places)
    assert (job.state, job.error.code) == (STATE.PIPELINE_STATE_FAILED, 13)
    assert "NoneType" in job.error.message and "NoneType" in local_cloud.pipelines.failures.pop()
    local_cloud.pipelines.close()
    assert run(local_cloud, graphs.places, run="run-2").state == STATE.PIPELINE_STATE_CANCELLED


def test_what_a_killed_launcher_had_started_ends_with_the_run(
    cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CANCEL_GRACE_S", 0.5)
    pool = {"replica_count": 1, "container_spec": {"image_uri": "image", "command": ["sleep", "600"]}}
    custom = f"{PARENT}/customJobs/7"
    state = aiplatform_v1.JobState.JOB_STATE_PENDING
    job = aiplatform_v1.CustomJob(name=custom, state=state, job_spec={"worker_pool_specs": [pool]})
    cloud.store.add(custom, job)
    cloud.custom_jobs.start(custom)
    # By the project's id, as launchers are given it.
    uri = "https://europe-west4-aiplatform.googleapis.com/v1/projects/acme-vision/locations/europe-west4/customJobs/7"
    resource = json.dumps({"resources": [{"resourceType": "CustomJob", "resourceUri": uri}]})
    name = submit(cloud, graphs.hanging, "cancelled-3", resource=resource, marker=str(tmp_path / "up"))
    wait_until((tmp_path / "up").exists)
    cloud.pipelines.cancel(name)
    assert wait_for_end(cloud.store, name).state == STATE.PIPELINE_STATE_CANCELLED
    assert cloud.store.get(custom).state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
