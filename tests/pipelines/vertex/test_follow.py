import dataclasses
import io
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import types

from contracts import storage
from contracts.errors import ConfigError, ErrorDocument, TryAgain
from pipelines.google import pipeline_client
from pipelines.runs import regions
from pipelines.runs.cancel import cancel
from pipelines.runs.follow import TaskLines, TaskTable, follow
from pipelines.runs.name import RunName, find_run
from pipelines.runs.regions import find_tries, follow_regions
from pipelines.runs.status import print_status, read_status, to_json
from pipelines.submission.submit import Prepared, Submitted, prepare, read_job, submit
from rehearsal.gcs import BucketServer
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, QUOTA, REGION, STOCKOUT, Cloud, MakeConfig, compiled_line

POLL_S = 0.05
REPLICA = "The replica workerpool0-0 exited with a non-zero status of 1."


@pytest.fixture
def prepared(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Prepared:
    config = make_config(resources={"regions": ["us-east4"], "max_pending_s": 10})
    return prepare(config, compiled_line(config, tiny_spec))


def name_of(run_id: str) -> RunName:
    return RunName(PROJECT, REGION, run_id)


class Followed:
    """A run that was followed over its regions, and what was said."""

    def __init__(self, prepared: Prepared) -> None:
        self.stream = io.StringIO()
        self.said: list[str] = []
        self.made: list[Submitted] = []
        self.ending = follow_regions(
            prepared,
            lambda: TaskLines(self.stream),
            say=self.said.append,
            submitted=self.made.append,
            poll_s=POLL_S,
        )
        self.exit_code = self.ending.exit_code

    @property
    def regions(self) -> list[str]:
        return [made.name.region for made in self.made]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(POLL_S)


def test_a_run_that_succeeds_is_told_task_by_task(cloud: Cloud, prepared: Prepared) -> None:
    followed = Followed(prepared)
    assert followed.exit_code == 0
    assert followed.regions == [REGION]
    lines = followed.stream.getvalue()
    assert "task begin: succeeded" in lines
    assert "task train.custom-training-job: succeeded" in lines
    assert lines.rstrip().endswith(f"run {prepared.run_id}: succeeded")


def test_the_next_region_is_tried_after_a_stockout_and_after_no_other_failure(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = STOCKOUT
    followed = Followed(prepared)
    assert followed.exit_code == 0
    assert followed.regions == [REGION, "us-east4"]
    assert {made.name.id for made in followed.made} == {prepared.run_id}
    assert "the next region is us-east4" in followed.said[-1]
    cloud.pipelines.script.outcomes["us-central1"] = QUOTA
    again = Followed(dataclasses.replace(prepared, run_id=f"{prepared.run_id}-b"))
    assert again.regions == [REGION]


def test_a_job_without_machines_is_cancelled_before_the_next_region(
    cloud: Cloud, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_pending_limit_s", lambda prepared, following: 0.3 if following else None)
    cloud.pipelines.script.outcomes["us-central1"] = "pending"
    followed = Followed(prepared)
    assert followed.exit_code == 0
    assert followed.regions == [REGION, "us-east4"]
    first = read_status(pipeline_client(REGION), name_of(prepared.run_id))
    assert first.state == "CANCELLED"
    assert [job.state for job in first.jobs] == ["CANCELLED"]
    # The same command again goes on in the region that it had come to.
    before = len(cloud.pipelines.started)
    again = Followed(prepared)
    assert again.exit_code == 0 and again.regions == ["us-east4"] and again.made[0].existed
    assert len(cloud.pipelines.started) == before


def test_tries_are_found_in_all_regions_and_by_their_line(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = STOCKOUT
    Followed(prepared)
    config = prepared.config
    both = [name_of(prepared.run_id), dataclasses.replace(name_of(prepared.run_id), region="us-east4")]
    assert find_tries(find_run(prepared.run_id, config=config)) == both
    assert find_tries(find_run(prepared.run_id, config=config, region="us-east4")) == both[1:]
    # A run of this id of somebody else's line is none of them.
    other = config.model_copy(update={"run": config.run.model_copy(update={"name": "other"})})
    with pytest.raises(ConfigError, match=r"there is no run .* of line other"):
        find_tries(find_run(prepared.run_id, config=other))


def test_a_job_that_waits_after_a_preemption_is_not_given_up(cloud: Cloud, prepared: Prepared) -> None:
    # Twelve hours after it was preempted, by the times that the service gives.
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    submit(prepared, prepared.submission())
    client, name = pipeline_client(REGION), name_of(prepared.run_id)
    wait_for(lambda: any(job.state == "RUNNING" for job in read_status(client, name).jobs))
    job_id = read_status(client, name).jobs[0].id
    job_name = f"projects/{NUMBER}/locations/{REGION}/customJobs/{job_id}"
    created = datetime.now(UTC) - timedelta(hours=14)

    def preempt(job: Any) -> None:
        job.state, job.create_time, job.start_time = 2, created, created + timedelta(hours=2)

    cloud.store.update(job_name, preempt)
    assert read_status(client, name).jobs[0].state == "PENDING"
    run = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{name.id}"
    threading.Timer(1.0, cloud.pipelines.fail, (run, job_name, REPLICA)).start()
    followed = Followed(prepared)
    assert followed.ending.state == "FAILED" and followed.ending.waiting is None
    assert not any("cancelling it" in line for line in followed.said)


def test_an_error_that_comes_after_the_end_of_the_run_is_waited_for(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    submit(prepared, prepared.submission())
    client, name = pipeline_client(REGION), name_of(prepared.run_id)
    wait_for(lambda: any(job.state == "RUNNING" for job in read_status(client, name).jobs))
    job_name = f"projects/{NUMBER}/locations/{REGION}/customJobs/{read_status(client, name).jobs[0].id}"
    # Nothing but the job's own error says what it was.
    cloud.pipelines.fail(f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{name.id}", job_name, "")

    def end(job: Any) -> None:
        job.end_time = datetime.now(UTC)

    def tell(job: Any) -> None:
        job.error = {"code": 8, "message": STOCKOUT}

    cloud.store.update(job_name, end)
    threading.Timer(1.0, cloud.store.update, (job_name, tell)).start()
    assert Followed(prepared).regions == [REGION, "us-east4"]


def test_without_machines_anywhere_it_is_try_again(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes |= {"us-central1": STOCKOUT, "us-east4": STOCKOUT}
    followed = Followed(prepared)
    assert followed.exit_code == 75
    assert followed.regions == [REGION, "us-east4"]


def test_a_users_error_stops(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "The replica workerpool0-0 exited with a non-zero status of 2."
    document = ErrorDocument(kind="DataError", exit_code=2, message="no shards\n  allowed: some\n  to do: shard first")
    uri = f"gs://bucket-1/runs/tiny/train/attempts/{prepared.run_id}.1/error.json"
    storage.publish(uri, document.model_dump_json().encode())
    followed = Followed(prepared)
    assert followed.exit_code == 2
    assert followed.regions == [REGION]
    assert followed.ending.diagnosis is not None
    assert followed.ending.diagnosis.advice == "shard first"


def test_cancel_ends_what_the_service_leaves_running(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-east4"] = "running"
    cloud.pipelines.script.deaf = cloud.pipelines.script.dataflow = True
    submit(prepared, prepared.submission("us-east4"))
    client, name = pipeline_client("us-east4"), dataclasses.replace(name_of(prepared.run_id), region="us-east4")
    wait_for(lambda: len(read_status(client, name).jobs) == 2)
    said: list[str] = []
    folder = f"gs://bucket-1/runs/tiny/runs/{name.id}"
    start = {"started_at": "2026-11-22T06:00:00Z", "config": prepared.config.model_dump(mode="json")}
    storage.replace(f"{folder}/run-start.json", json.dumps(start).encode())
    done = cancel(client, name, say=said.append, patience_s=0, poll_s=POLL_S)
    assert not done.had_ended
    # Else it would count as one that works.
    assert json.loads(storage.read_bytes(f"{folder}/run.json"))["state"] == "interrupted"
    assert {job.kind: job.state for job in done.jobs} == {"CustomJob": "CANCELLED", "Dataflow": "CANCELLED"}
    assert len(done.by_hand) == 2
    assert read_status(client, name).state == "CANCELLED"
    again = cancel(client, name, poll_s=POLL_S)
    assert again.had_ended and again.by_hand == ()


def test_cancel_leaves_jobs_of_others_alone(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    submit(prepared, prepared.submission())
    client, name = pipeline_client(REGION), name_of(prepared.run_id)
    wait_for(lambda: len(read_status(client, name).jobs) == 1)
    since = read_job(client, name).create_time
    root = prepared.compiled.pipeline_root
    words = {
        # One of this run that nobody told of, and others that only look like it.
        "own": ["--executor-input", f'{{"outputs": {{"outputFile": "{root}/1/{name.id}/train_2/output.json"}}}}'],
        "line": ["--executor-input", f"gs://bucket-1/other/pipeline/1/{name.id}/train_2/output.json"],
        "run": ["--executor-input", f"{root}/1/{name.id}-b/train_2/output.json"],
        "word": ["--mode", name.id, root],
    }
    for display_name, args in words.items():
        job_name = f"projects/{NUMBER}/locations/{REGION}/customJobs/{cloud.store.new_id()}"
        pools = [{"replica_count": 1, "container_spec": {"args": args, "image_uri": "image"}}]
        job = types.CustomJob(name=job_name, display_name=display_name, job_spec={"worker_pool_specs": pools})
        job.state, job.create_time = types.JobState.JOB_STATE_RUNNING, since
        cloud.store.add(job_name, job)
    done = cancel(client, name, patience_s=0, poll_s=POLL_S)
    assert sorted(job.display_name for job in done.jobs) == ["own", "train"]


def test_a_run_of_another_line_is_no_try(cloud: Cloud, prepared: Prepared) -> None:
    config = prepared.config.model_copy(update={"run": prepared.config.run.model_copy(update={"name": "other"})})
    theirs = dataclasses.replace(prepared, config=config)
    submit(theirs, theirs.submission("us-east4"))
    assert Followed(prepared).regions == [REGION]


def test_a_dataflow_job_that_no_task_names_is_found_by_its_label(cloud: Cloud, prepared: Prepared) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    submit(prepared, prepared.submission())
    client, name = pipeline_client(REGION), name_of(prepared.run_id)
    wait_for(lambda: len(read_status(client, name).jobs) == 1)
    since = read_job(client, name).create_time
    own = prepared.run_id
    for number, (run, line) in enumerate(((own, "tiny"), ("another", "tiny"), (own, "tiny"), (own, "another"))):
        labels = {"shardline-run": run, "shardline-line": line}
        cloud.add_dataflow_job(f"lost-{number}", "shardline-0123", labels=labels, create_time=since)
    assert len(read_status(client, name).jobs) == 1, "nothing was launched"
    launcher = {"task_id": 5, "parent_task_id": 1, "task_name": "shard", "state": "FAILED"}

    def launch(job: Any) -> None:
        job.job_detail.task_details = [*job.job_detail.task_details, launcher]

    cloud.store.update(name.resource.replace(PROJECT, NUMBER), launch)
    jobs = read_status(client, name).jobs
    assert sorted(job.id for job in jobs if job.kind == "Dataflow") == ["lost-0", "lost-2"]
    done = cancel(client, name, patience_s=0, poll_s=POLL_S)
    assert {job.id: job.state for job in done.jobs if job.kind == "Dataflow"} == dict.fromkeys(
        ("lost-0", "lost-2"), "CANCELLED"
    )


def test_status_tells_of_a_live_and_of_a_failed_run(cloud: Cloud, prepared: Prepared) -> None:
    client = pipeline_client(REGION)
    cloud.pipelines.script.outcomes = {"us-central1": "running", "us-east4": STOCKOUT}
    submit(prepared, prepared.submission())
    wait_for(lambda: [job.state for job in read_status(client, name_of(prepared.run_id)).jobs] == ["RUNNING"])
    live = read_status(client, name_of(prepared.run_id))
    assert live.state == "RUNNING" and live.diagnosis is None
    assert {task.name: task.state for task in live.tasks} == {
        "begin": "SUCCEEDED",
        "train": "RUNNING",
        "train.custom-training-job": "RUNNING",
    }
    assert live.jobs[0].task == "train.custom-training-job"
    assert "ai/platform/locations/us-central1/training/" in live.jobs[0].console
    cancel(client, name_of(prepared.run_id), poll_s=POLL_S)

    submit(prepared, prepared.submission("us-east4"))
    client, other = pipeline_client("us-east4"), dataclasses.replace(name_of(prepared.run_id), region="us-east4")
    wait_for(lambda: read_status(client, other).state == "FAILED")
    failed = read_status(client, other)
    assert failed.diagnosis is not None and failed.diagnosis.kind == "stockout"
    stream = io.StringIO()
    print_status(failed, stream)
    assert "likely cause: the region has no such machines left now" in stream.getvalue()
    assert to_json(failed)["diagnosis"]["exit_code"] == 75


def test_the_table_on_a_terminal_has_every_task_and_job(cloud: Cloud, prepared: Prepared) -> None:
    from rich.console import Console

    submit(prepared, prepared.submission())
    client, name, table = pipeline_client(REGION), name_of(prepared.run_id), TaskTable()
    stream = io.StringIO()
    table._live.console = Console(file=stream, force_terminal=True, width=120)
    assert follow(client, name, table, poll_s=POLL_S).exit_code == 0
    assert "train.custom-training-job" in stream.getvalue() and "succeeded" in stream.getvalue()


def test_a_service_that_is_gone_is_try_again(cloud: Cloud, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(prepared, prepared.submission())
    monkeypatch.setattr("pipelines.google.RETRY_DEADLINE_S", 1.0)
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(TryAgain, match="no answer"):
        read_status(pipeline_client("europe-west4"), RunName(PROJECT, "europe-west4", prepared.run_id))


def test_a_bucket_that_went_away_is_the_cause(cloud: Cloud, prepared: Prepared, bucket_server: BucketServer) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "The replica workerpool0-0 exited with a non-zero status of 1."
    submit(prepared, prepared.submission())
    bucket_server.clear()
    client, name = pipeline_client(REGION), name_of(prepared.run_id)
    wait_for(lambda: read_status(client, name).state == "FAILED")
    found = read_status(client, name)
    assert found.diagnosis is not None and (found.diagnosis.kind, found.diagnosis.exit_code) == ("missing bucket", 2)
    assert "no account of the training" in found.note
