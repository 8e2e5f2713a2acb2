import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contracts.errors import ConfigError
from pipelines.google import pipeline_client
from pipelines.runs.cancel import cancel
from pipelines.runs.logs import make_filter, parse_since, read_logs
from pipelines.runs.name import RunName
from pipelines.runs.status import read_status
from pipelines.submission.submit import Prepared, prepare, submit
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, QUOTA, REGION, Cloud, MakeConfig, compiled_line

POLL_S = 0.05


@pytest.fixture
def prepared(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Prepared:
    config = make_config()
    return prepare(config, compiled_line(config, tiny_spec))


def start(cloud: Cloud, prepared: Prepared) -> tuple[Any, RunName, str]:
    """Submit a run that goes on, and return the id of its custom job."""
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    submit(prepared, prepared.submission())
    client, name = pipeline_client(REGION), RunName(PROJECT, REGION, prepared.run_id)
    deadline = time.monotonic() + 120
    while not (jobs := read_status(client, name).jobs):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    return client, name, jobs[0].id


def write(cloud: Cloud, job_id: str, text: str, *, replica: str = "workerpool0-0", severity: str = "INFO") -> None:
    labels = {"job_id": job_id, "task_name": replica, "project_id": PROJECT}
    cloud.server.state.logs.write("ml_job", labels, text, severity, cloud.clock.now())


def test_the_lines_of_the_runs_own_jobs_come_in_order(cloud: Cloud, prepared: Prepared) -> None:
    client, name, job_id = start(cloud, prepared)
    write(cloud, job_id, "step 1")
    write(cloud, "another job", "not ours")
    write(cloud, job_id, "a rank is gone", replica="workerpool1-0", severity="ERROR")
    found = [(entry.source, entry.severity, entry.text) for entry in read_logs(client, name, follow=False)]
    assert found == [
        ("train.custom-training-job/workerpool0-0", "INFO", "step 1"),
        ("train.custom-training-job/workerpool1-0", "ERROR", "a rank is gone"),
    ]
    assert [entry.text for entry in read_logs(client, name, task="train", follow=False)] == ["step 1", "a rank is gone"]
    assert list(read_logs(client, name, task="begin", follow=False)) == []
    with pytest.raises(ConfigError, match="no task shard"):
        list(read_logs(client, name, task="shard", follow=False))


def test_follow_tells_each_line_once_and_ends_with_the_run(cloud: Cloud, prepared: Prepared) -> None:
    client, name, job_id = start(cloud, prepared)
    write(cloud, job_id, "step 1")
    told: list[str] = []
    came = threading.Event()

    def read() -> None:
        try:
            for entry in read_logs(client, name, follow=True, poll_s=POLL_S):
                told.append(entry.text)
                came.set()
        finally:
            came.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert came.wait(120)
    write(cloud, job_id, "step 2")
    cancel(client, name, poll_s=POLL_S)
    reader.join(120)
    assert not reader.is_alive()
    assert told == ["step 1", "step 2"]


def test_what_only_a_log_tells_is_a_cause_too(cloud: Cloud, prepared: Prepared) -> None:
    client, name, job_id = start(cloud, prepared)
    write(cloud, job_id, "INFO lines may say anything: preempted, permission denied")
    write(cloud, job_id, f"google.api_core.exceptions.ResourceExhausted: 429 {QUOTA}", severity="ERROR")
    job = f"projects/{NUMBER}/locations/{REGION}/customJobs/{job_id}"
    run = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{name.id}"
    cloud.pipelines.fail(run, job, "The replica workerpool0-0 exited with a non-zero status of 1.")
    found = read_status(client, name).diagnosis
    assert found is not None and found.kind == "quota"
    assert "custom_model_training_nvidia_l4_gpus" in found.cause


def test_the_query_names_every_kind_of_source() -> None:
    sources = {("ml_job", "1"): "train", ("ml_job", "2"): "profile", ("dataflow_step", "f"): "shard"}
    assert make_filter(sources, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == (
        '((resource.type="ml_job" AND resource.labels.job_id=("1" OR "2")) OR '
        '(resource.type="dataflow_step" AND resource.labels.job_id=("f"))) AND timestamp>="2026-01-02T03:04:05.000000Z"'
    )


def test_the_last_lines_and_those_since_a_moment(cloud: Cloud, prepared: Prepared) -> None:
    client, name, job_id = start(cloud, prepared)
    for step in range(1, 4):
        write(cloud, job_id, f"step {step}")
        cloud.clock.advance(600)

    def said(**options: Any) -> list[str]:
        return [entry.text for entry in read_logs(client, name, follow=False, **options)]

    assert said(tail=2) == ["step 2", "step 3"]
    assert (said(tail=0), said(tail=10)) == ([], ["step 1", "step 2", "step 3"])
    moment = datetime.fromtimestamp(cloud.clock.now(), UTC) - timedelta(minutes=25)
    assert said(since=moment) == ["step 2", "step 3"]
    assert said(since=moment, tail=1) == ["step 3"]


def test_a_moment_is_an_age_or_a_time() -> None:
    now = datetime.now(UTC)
    ages = {"90s": 90, "10m": 600, "2h": 7200, "1d": 86400, "1.5h": 5400}
    assert {text: (now - parse_since(text)).total_seconds() for text in ages} == pytest.approx(ages, abs=5)
    moment = datetime(2026, 12, 1, 6, tzinfo=UTC)
    assert parse_since("2026-12-01T06:00:00Z") == parse_since("2026-12-01T06:00") == moment
    for text in ("yesterday", "10", "-5m", ""):
        with pytest.raises(ConfigError, match="--since"):
            parse_since(text)
