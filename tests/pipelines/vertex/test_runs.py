import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import types
from typer.testing import CliRunner

from contracts import storage
from contracts.errors import ConfigError, ErrorDocument
from pipelines.cli import app
from pipelines.follow import cancel, follow, submit_and_wait
from pipelines.runs import explain, find_jobs, find_runs, read_status, read_tasks, refresh, status_lines
from pipelines.submit import Ready, make_run_id, state_of, submit
from tests.pipelines.vertex.conftest import (
    NUMBER,
    QUOTA,
    REGION,
    STOCKOUT,
    Cloud,
    MakeConfig,
    make_ready,
    wait_for,
)

POLL_S = 0.05
REPLICA = "The replica workerpool0-0 exited with a non-zero status of 1."


@pytest.fixture
def ready(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Ready:
    return make_ready(make_config(resources={"regions": ["us-east4"], "max_pending_s": 10}), tiny_spec)


class Waited:
    """A run that was followed over its regions."""

    def __init__(self, ready: Ready, run_id: str = "") -> None:
        self.run_id = run_id or make_run_id("tiny")
        self.messages: list[str] = []
        self.names: list[str] = []
        self.exit_code = submit_and_wait(ready, self.run_id, self.messages.append, self.names.append, poll_s=POLL_S)

    @property
    def regions(self) -> list[str]:
        return [name.split("/")[3] for name in self.names]

    @property
    def text(self) -> str:
        return "\n".join(self.messages)


def start(cloud: Cloud, ready: Ready, region: str = REGION) -> Any:
    """Submit a run whose job goes on, and return it once the job runs."""
    cloud.pipelines.script.outcomes[region] = "running"
    job = submit(ready, make_run_id("tiny"), lambda _: None, region)
    wait_for(lambda: [each.state for each in find_jobs(job)] == ["running"])
    refresh(job)
    return job


def full_name(job: Any, kind: str, name: str) -> str:
    return f"projects/{NUMBER}/locations/{job.location}/{kind}/{name}"


def fail(cloud: Cloud, job: Any, message: str) -> None:
    (custom_job,) = find_jobs(job)
    cloud.pipelines.fail(full_name(job, "pipelineJobs", job.name), full_name(job, "customJobs", custom_job.id), message)
    refresh(job)


def test_the_next_region_is_tried_after_a_stockout_and_after_no_other_failure(cloud: Cloud, ready: Ready) -> None:
    cloud.pipelines.script.outcomes[REGION] = STOCKOUT
    waited = Waited(ready)
    assert waited.exit_code == 0 and waited.regions == [REGION, "us-east4"]
    assert "the next region is us-east4" in waited.text and "task train: succeeded" in waited.text
    assert waited.text.endswith(f"run {waited.run_id}: succeeded")
    cloud.pipelines.script.outcomes[REGION] = QUOTA
    assert Waited(ready).regions == [REGION]
    cloud.pipelines.script.outcomes |= {REGION: STOCKOUT, "us-east4": STOCKOUT}
    nowhere = Waited(ready)
    assert nowhere.exit_code == 75 and nowhere.regions == [REGION, "us-east4"]
    assert "to do: set resources.regions" in nowhere.text


def test_a_job_without_machines_is_cancelled_before_the_next_region(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    config = make_config(resources={"regions": ["us-east4"]})
    impatient = config.resources.model_copy(update={"max_pending_s": 0.3})
    ready = make_ready(config.model_copy(update={"resources": impatient}), tiny_spec)
    cloud.pipelines.script.outcomes[REGION] = "pending"
    waited = Waited(ready)
    assert waited.exit_code == 0 and waited.regions == [REGION, "us-east4"]
    first, second = find_runs(waited.run_id, config=ready.config)
    assert (state_of(first), [job.state for job in find_jobs(first)]) == ("cancelled", ["cancelled"])
    # The same command again goes on in the region that it had come to.
    before = len(cloud.pipelines.started)
    again = Waited(ready, waited.run_id)
    assert again.exit_code == 0 and again.regions == ["us-east4"]
    assert len(cloud.pipelines.started) == before
    # Interrupted between the cancellation and the next region: the same command goes on there.
    job = submit(ready, make_run_id("tiny"), lambda _: None)
    wait_for(lambda: bool(find_jobs(job)))
    cancel(job, lambda _: None, patience_s=0, poll_s=POLL_S)
    assert Waited(ready, job.name).regions == [REGION, "us-east4"]
    # By its full name, and not a run of this id of another line.
    assert find_runs(second.resource_name)[0].location == "us-east4"
    alone = config.with_keys(cloud={"region": ""}, resources={"regions": ["us-east4"]})
    assert [found.location for found in find_runs(waited.run_id, config=alone)] == ["us-east4"]
    other = config.model_copy(update={"run": config.run.model_copy(update={"name": "other"})})
    with pytest.raises(ConfigError, match=r"there is no run .* of line other in project"):
        find_runs(waited.run_id, config=other)
    with pytest.raises(ConfigError, match="its project and region are not known"):
        find_runs(waited.run_id)


def test_a_folder_of_a_run_or_a_line_names_its_job(cloud: Cloud, ready: Ready) -> None:
    job = submit(ready, make_run_id("tiny"), lambda _: None)
    line = "gs://bucket-1/runs/tiny"
    start = {"id": job.name, "started_at": "2026-01-02T00:00:00Z", "arguments": {"job": job.resource_name}}
    storage.replace(f"{line}/runs/{job.name}/run-start.json", json.dumps(start).encode())
    for run in (f"{line}/runs/{job.name}", line, f"{line}:latest"):
        assert [found.name for found in find_runs(run)] == [job.name]
    assert [found.name for found in find_runs("tiny:latest", config=ready.config)] == [job.name]
    # `submit` prints the full name, which `report` and `promote` take too.
    inspected = CliRunner().invoke(app, ["inspect", job.resource_name, "-o", "json"])
    assert json.loads(inspected.stdout)["id"] == job.name, inspected.output
    storage.replace(f"{line}/runs/{job.name}/run-start.json", json.dumps({**start, "arguments": {}}).encode())
    with pytest.raises(ConfigError, match="is a run of this machine"):
        find_runs(line)


def test_a_job_that_waits_after_a_preemption_is_not_given_up(cloud: Cloud, ready: Ready) -> None:
    job = start(cloud, ready)
    name = full_name(job, "customJobs", find_jobs(job)[0].id)
    began = datetime.now(UTC) - timedelta(hours=12)

    def preempt(message: Any) -> None:
        message.state, message.start_time = types.JobState.JOB_STATE_PENDING, began

    cloud.store.update(name, preempt)
    run = full_name(job, "pipelineJobs", job.name)
    threading.Timer(1.0, cloud.pipelines.fail, (run, name, REPLICA)).start()
    assert follow(job, lambda _: None, limit_s=0.2, poll_s=POLL_S) is None
    assert state_of(job) == "failed"


def test_why_a_run_failed_is_told_by_the_service_the_stage_and_a_known_cause(cloud: Cloud, ready: Ready) -> None:
    job = start(cloud, ready)
    live = read_status(job)
    assert (live["state"], live["failure"]) == ("running", None)
    assert [(task["name"], task["state"]) for task in live["tasks"]] == [("shard", "succeeded"), ("train", "running")]
    assert live["jobs"][0]["task"] == "train" and "ai/platform/locations/us-" in live["jobs"][0]["console"]
    fail(cloud, job, QUOTA)
    document = ErrorDocument(kind="Preempted", exit_code=75, message="step 40 is saved")
    uri = f"gs://bucket-1/runs/tiny/train/attempts/{job.name}.1/error.json"
    storage.replace(uri, document.model_dump_json().encode())
    failure = explain(job, read_tasks(job), find_jobs(job))
    assert (failure.task, failure.service_message, failure.stage_message, failure.kind) == (
        "train",
        QUOTA,
        "step 40 is saved",
        "quota",
    )
    assert failure.exit_code == 75
    text = "\n".join(status_lines(json.loads(json.dumps(read_status(job)))))
    assert "the stage says: step 40 is saved" in text
    assert "a quota of the project is used up: aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus" in text
    # A stage's own message about a user error is more precise than a pattern.
    document = ErrorDocument(kind="DataError", exit_code=2, message="no shards\n  allowed: some\n  to do: shard first")
    storage.replace(uri, document.model_dump_json().encode())
    failure = explain(job, read_tasks(job), find_jobs(job))
    assert (failure.cause, failure.todo, failure.exit_code) == ("", "", 2)
    assert Waited(ready, job.name).exit_code == 2


def test_cancel_ends_what_the_service_leaves_running_and_nothing_of_others(cloud: Cloud, ready: Ready) -> None:
    others = start(cloud, ready)
    cloud.pipelines.script.outcomes["us-east4"] = "running"
    cloud.pipelines.script.deaf = cloud.pipelines.script.dataflow = True
    job = submit(ready, make_run_id("tiny"), lambda _: None, "us-east4")
    wait_for(lambda: (refresh(job), len(find_jobs(job)))[1] == 2)
    for number, labels in enumerate(({"shardline-run": "other"}, {"shardline-line": "other"})):
        own = {"shardline-line": "tiny", "shardline-run": job.name}
        flow = f"not-ours-{number}"
        cloud.add_dataflow_job(flow, "shardline-0123", labels={**own, **labels}, create_time=datetime.now(UTC))
    folder = f"gs://bucket-1/runs/tiny/runs/{job.name}"
    begun = {"started_at": "2026-11-22T06:00:00Z", "config": ready.config.model_dump(mode="json")}
    storage.replace(f"{folder}/run-start.json", json.dumps(begun).encode())
    messages: list[str] = []
    done = cancel(job, messages.append, patience_s=0, poll_s=POLL_S)
    assert {each.kind: each.state for each in done} == {"CustomJob": "cancelled", "Dataflow job": "cancelled"}
    assert state_of(job) == "cancelled" and len(messages) == 3
    # Else it would count as one that works.
    assert json.loads(storage.read_bytes(f"{folder}/run.json"))["state"] == "interrupted"
    assert [each.state for each in cancel(job, messages.append, poll_s=POLL_S)] == ["cancelled", "cancelled"]
    assert len(messages) == 3
    refresh(others)
    assert [each.state for each in find_jobs(others)] == ["running"]
