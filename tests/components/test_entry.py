"""What a component's container runs, on a line in a bucket."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.begin import begin, data_date
from components.task import MAX_INPUT_BYTES, MAX_METADATA_BYTES, Task, bound_metadata, is_first_machine
from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import RunConfig
from contracts.errors import TryAgain
from contracts.previous import find_previous, read_previous
from contracts.process import EXIT_ABORTED, JOB_ID_VARIABLE
from inspection.stages import find_errors
from rehearsal.gcs import BucketServer
from tests.components.tasks import LINE, RUN, executor_input, make_config, perform, publish, read_output, root_of
from tests.conftest import write_pictures
from tests.inspection.documents import DOCUMENTS

OUTPUT = f"{root_of('shard')}/executor_output.json"
START = f"{LINE}/runs/{RUN}/run-start.json"
UNRESOLVED = "{{$.pipeline_job_schedule_time_utc}}"


def list_source(config: RunConfig, scheduled_at: str = "") -> int:
    return perform("list-source", config, job="j", created_at="2026-11-22T06:00:07Z", scheduled_at=scheduled_at)


def test_a_run_begins_once_and_lists_the_source_of_its_day(tmp_path: Path, bucket_server: BucketServer) -> None:
    write_pictures(tmp_path / "2026-11-23", per_class=2)
    config = make_config(
        schedule={"time_zone": "Asia/Tokyo"}, sharding={"source": f"{tmp_path}/{{date}}"}, train={"epochs": 3}
    )
    assert list_source(config, "2026-11-22T16:00:00Z") == 0
    listing = read_output("list-source", "listing")
    assert listing.startswith(f"{LINE}/shard/") and storage.list_objects(listing)
    first = storage.read_bytes(START)
    start = json.loads(first)
    assert (start["id"], start["data_date"]) == (RUN, "2026-11-23T01:00:00+09:00")
    assert (start["config"]["train"]["epochs"], start["arguments"]["job"]) == (3, "j")
    # Tried again, of a day that has no folder: the run is of the first one's.
    assert list_source(config, UNRESOLVED) == 0
    assert (storage.read_bytes(START), read_output("list-source", "listing")) == (first, listing)


@pytest.mark.parametrize(
    ("scheduled_at", "zone", "date"),
    [
        ("2026-10-26T06:00:00+01:00", "Etc/UTC", "2026-10-26T05:00:00+00:00"),
        (UNRESOLVED, "Etc/UTC", "2026-11-22T06:00:07+00:00"),
        ("2026-11-22T06:00:00", "Etc/UTC", "2026-11-22T06:00:00+00:00"),
        # A schedule of half past midnight is not of the day before.
        ("2026-07-01T22:30:00Z", "Europe/Berlin", "2026-07-02T00:30:00+02:00"),
    ],
)
def test_the_data_is_of_the_moment_that_was_scheduled(scheduled_at: str, zone: str, date: str) -> None:
    assert data_date(scheduled_at, "2026-11-22T06:00:07Z", zone) == date


def test_a_second_try_of_a_run_is_the_run_of_its_own_job(bucket_server: BucketServer) -> None:
    """A try in another region: what the first one has recorded does not speak for a run that works."""
    config = make_config()
    for job, created_at in (("first", "2026-11-22T06:00:07Z"), ("second", "2026-11-23T06:00:07Z")):
        task = Task(executor_input("list-source", config, {}, job=job, created_at=created_at, scheduled_at=""))
        assert begin(task, config, LINE) == "2026-11-22T06:00:07+00:00"
        assert json.loads(storage.read_bytes(START))["arguments"]["job"] == job
        assert not storage.exists(f"{LINE}/runs/{RUN}/run.json")
        storage.replace(f"{LINE}/runs/{RUN}/run.json", b"{}")


def test_a_run_begins_with_the_training_before_it(bucket_server: BucketServer) -> None:
    """Found once: a training that ends meanwhile is not what the run's attempts start from."""
    config, first = make_config(model={"weights": "previous"}), publish("train")
    task = Task(executor_input("list-source", config, {}, job="j", created_at="", scheduled_at=""))
    begin(task, config, LINE)
    later = DOCUMENTS["train"].model_copy(update={"finished_at": "2026-12-01T00:00:00Z"})
    storage.replace(f"{LINE}/train/{'f' * 16}/{MANIFEST_NAME}", later.to_json())
    begin(task, config, LINE)
    assert (find_previous(LINE), read_previous(LINE, RUN)) == (f"{LINE}/train/{'f' * 16}", first)


def test_a_source_that_cannot_be_listed_says_why(
    tmp_path: Path, bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(sharding={"source": str(tmp_path / "raw")})
    assert list_source(config) == 2
    (error,) = find_errors(LINE, RUN).items()
    assert error[0] == "list-source" and error[1].exit_code == 2 and str(tmp_path / "raw") in error[1].message
    assert f"list-source: error: {error[1].message}" in capfd.readouterr().err


def test_another_machine_than_the_first_writes_no_output(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"cluster": {}, "task": {"type": "workerpool1", "index": 0}, "environment": "cloud"}
    monkeypatch.setenv("CLUSTER_SPEC", json.dumps(spec))
    assert perform("shard", make_config(), listing=publish("shard")) == 0
    assert not storage.exists(OUTPUT)
    assert is_first_machine({"CLUSTER_SPEC": json.dumps(spec | {"task": {"type": "workerpool0", "index": 0}})})


def test_an_input_that_was_deleted_ends_with_2_and_the_way_out(
    bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    shards, model = publish("shard"), f"{LINE}/train/0123456789abcdef"
    assert perform("export", make_config(), {"shards": shards, "model": model}) == 2
    said = capfd.readouterr().err
    assert f"export: error: input model: {model} has no manifest.json" in said
    assert "`shardline submit CONFIG --no-cache`" in said
    assert find_errors(LINE, RUN)["export"].message in said
    assert not storage.exists(f"{root_of('export')}/executor_output.json")


def test_a_bucket_that_is_gone_does_not_change_how_a_task_ends(
    bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(run={"root": "gs://bucket-gone/lines", "name": "weekly"})
    inputs = {name: f"gs://bucket-gone/lines/weekly/{name}/0" for name in ("shards", "served")}
    assert perform("register", config, inputs) == 2
    said = capfd.readouterr().err
    assert "register: error: " in said and "errors could not be brought up to date" in said


def test_metadata_are_kept_as_far_as_there_is_room() -> None:
    matrix = {"rows": [[1] * 100] * 20}
    fields = {"a": "x" * 5000, "b" * 500: 1, **{f"n{number}": "y" * 1000 for number in range(1000)}, "matrix": matrix}
    for most in (MAX_INPUT_BYTES, MAX_METADATA_BYTES):
        kept, left_out = bound_metadata(fields, most)
        assert kept["matrix"] == matrix and kept["a"].endswith("x…") and "b" * 500 not in kept
        assert len(kept) + left_out == len(fields) and len(json.dumps(kept)) <= most
        # In the order in which they were given.
        assert list(kept) == [name for name in fields if name in kept]


STAGE = """
import pathlib, signal, sys, time

def stop(number, frame):
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
ENTRY = (
    "import sys; from components.entry import _run_command; print(_run_command([sys.executable, '-c', *sys.argv[1:]]))"
)


def test_a_stage_gets_the_signals_of_its_task(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY, STAGE, tmp_path / "there"], stdout=subprocess.PIPE, text=True
    )
    while not (tmp_path / "there").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert told.splitlines() == ["saved", "(75, b'saved\\n')"]


def test_what_may_work_another_time_asks_for_another_attempt(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Vertex AI: any other exit code ends the job."""
    monkeypatch.setenv(JOB_ID_VARIABLE, "7")
    assert perform("shard", make_config(), listing=f"{LINE}/shard/{'0' * 16}") == EXIT_ABORTED

    def no_answer(what: str, uri: str) -> None:
        raise TryAgain("no answer")

    monkeypatch.setattr("components.task.require_finished", no_answer)
    assert perform("export", make_config(), {"shards": "gs://s", "model": "gs://m"}) == EXIT_ABORTED
