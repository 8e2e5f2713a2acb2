"""The record of a run, from how its PipelineJob's tasks ended and from what its stages left."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from components.record_run import TASKS, collect
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, RunRecord
from contracts.config import STAGES
from contracts.errors import ErrorDocument
from inspection.stages import leave_error
from rehearsal.gcs import BucketServer
from tests.components.tasks import LINE, RUN, make_config, perform, publish, read_artifacts, read_output, write_attempt
from tests.pipelines.vertex.conftest import NUMBER, REGION, Cloud

JOB = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{RUN}"
FOLDER = f"{LINE}/runs/{RUN}"


def ended(name: str, state: str, uri: str = "", metadata: Mapping[str, Any] | None = None, error: str = "") -> Any:
    """Return what Vertex AI tells of a task."""
    artifact = {"name": f"{JOB}-{name}", "uri": uri, "metadata": metadata or {}}
    return aiplatform_v1.PipelineTaskDetail(
        task_name=name,
        state=aiplatform_v1.PipelineTaskDetail.State[state],
        outputs={TASKS[name]: {"artifacts": [artifact]}} if uri else {},
        error={"message": error},
    )


def test_a_run_is_recorded_from_its_tasks_and_what_its_stages_left(cloud: Cloud) -> None:
    details = [ended("list-source", "SUCCEEDED")]
    for number, stage in enumerate(STAGES):
        uri, at = publish(stage), 1000.0 * (number + 1)
        details.append(ended(stage, "SUCCEEDED" if stage != "profile" else "SKIPPED", uri))
        write_attempt(stage, "another-run.c", [{"time": 1.0, "event": "start", "launched_at": 1.0}])
        if stage == "profile":
            # Of another run: KFP had it in its cache.
            continue
        # Preempted, and started again.
        write_attempt(stage, f"{RUN}.a", [{"time": at, "event": "start", "launched_at": at}])
        ends = {"time": at + 60, "event": "finish", "uri": uri, "made": f"made by {stage}"}
        write_attempt(stage, f"{RUN}.b", [{"time": at + 50, "event": "start", "launched_at": at + 50}, ends])
    decision = {"verdict": "kept out", "interval": [-0.25, 0.5], "samples": 50}
    details.append(ended("register", "SUCCEEDED", f"{LINE}/export/0123456789abcdef", decision))
    job = aiplatform_v1.PipelineJob(name=JOB, job_detail={"task_details": details})
    cloud.store.add(JOB, job)
    start = {"id": RUN, "started_at": "2026-11-22T06:00:00Z", "config": make_config().model_dump(mode="json")}
    storage.replace(f"{FOLDER}/run-start.json", json.dumps(start).encode())
    assert perform("record", make_config(), job=JOB) == 0
    record = RunRecord.model_validate_json(storage.read_bytes(f"{FOLDER}/run.json"))
    assert (record.id, record.state, record.error) == (RUN, "succeeded", "")
    assert [(stage.name, stage.state, stage.wall_s) for stage in record.stages] == [
        (stage, "reused" if stage == "profile" else "done", 0.0 if stage == "profile" else 60.0) for stage in STAGES
    ]
    assert (record.results["parameters_sha256"], record.results["register"]) == ("ab", decision)
    assert storage.read_bytes(f"{LINE}/run.json") == storage.read_bytes(f"{FOLDER}/run.json")
    assert [stage.made for stage in record.stages if stage.name == "train"] == ["made by train"]
    report = read_artifacts("record")["report"]
    assert (report["schemaTitle"], report["metadata"]) == (
        "system.HTML",
        {"state": "succeeded", "error": "", "run": FOLDER},
    )
    assert 'data-section="overview"' in read_output("record", "report")


FAILED = ended("profile", "FAILED", error="exit code 2")


@pytest.mark.parametrize(
    ("left", "profile", "error"),
    [
        # Those of its task are newer than those of a stage's attempts: they go when a stage has run.
        (("attempt",), FAILED, "stage profile: train.epochs = -1"),
        (("attempt", "task"), FAILED, "task profile: input shards holds no manifest.json"),
        (("task",), FAILED, "task profile: input shards holds no manifest.json"),
        (
            (),
            FAILED,
            "task profile: exit code 2\n  to do: shardline status gs://bucket-1/lines/weekly/runs/20261122-060000-0001",
        ),
        (
            (),
            ended("profile", "SKIPPED", f"{LINE}/profile/gone"),
            f"task profile: {LINE}/profile/gone has no manifest.json",
        ),
        # Nobody says why: it has not succeeded all the same.
        ((), ended("profile", "NOT_TRIGGERED"), "stage profile: no output, and no task gives a reason"),
    ],
)
def test_a_run_that_failed_says_which_task_and_why(
    bucket_server: BucketServer, left: tuple[str, ...], profile: Any, error: str
) -> None:
    document = ErrorDocument(kind="ConfigError", exit_code=2, message="train.epochs = -1")
    write_attempt("profile", f"{RUN}.a", [{"time": 5.0, "event": "start", "launched_at": 5.0}])
    if "attempt" in left:
        storage.replace(f"{LINE}/profile/attempts/{RUN}.a/error.json", document.model_dump_json().encode())
    if "task" in left:
        leave_error(
            LINE, RUN, "profile", document.model_copy(update={"message": "input shards holds no manifest.json"})
        )
    tasks = {
        "list-source": ended("list-source", "SUCCEEDED"),
        "shard": ended("shard", "SUCCEEDED", publish("shard")),
        "profile": profile,
        "train": ended("train", "NOT_TRIGGERED"),
    }
    record = collect(LINE, RUN, make_config(), tasks)
    assert record.state == "failed" and record.error.startswith(error)
    assert [stage.state for stage in record.stages] == ["done", "failed", "not started", "not started"]


def test_a_run_whose_results_were_deleted_ends_with_2(cloud: Cloud) -> None:
    """All was in KFP's cache: no other task has looked."""
    uris = {stage: publish(stage) for stage in STAGES}
    storage.delete(f"{uris['train']}/{MANIFEST_NAME}")
    details = [ended("list-source", "SUCCEEDED"), *(ended(stage, "SKIPPED", uri) for stage, uri in uris.items())]
    cloud.store.add(f"{JOB}-3", aiplatform_v1.PipelineJob(name=f"{JOB}-3", job_detail={"task_details": details}))
    assert perform("record", make_config(), job=f"{JOB}-3") == 2
    record = RunRecord.model_validate_json(storage.read_bytes(f"{FOLDER}/run.json"))
    assert record.state == "failed" and "submit CONFIG --no-cache" in record.error
    assert read_artifacts("record")["report"]["metadata"]["state"] == "failed"


@pytest.mark.parametrize(("kept", "error"), [(True, "task shard: no gs://raw"), (False, "stage shard: no gs://raw")])
def test_without_tasks_the_errors_that_were_left_say_why(bucket_server: BucketServer, kept: bool, error: str) -> None:
    """Kubeflow Pipelines is not asked, and Vertex AI may not answer."""
    document = ErrorDocument(kind="DataError", exit_code=2, message="no gs://raw")
    if kept:
        leave_error(LINE, RUN, "shard", document)
    write_attempt("shard", f"{RUN}.a", [{"time": 5.0, "event": "start", "launched_at": 5.0}])
    storage.replace(f"{LINE}/shard/attempts/{RUN}.a/error.json", document.model_dump_json().encode())
    assert collect(LINE, RUN, make_config(), {}).error == error
