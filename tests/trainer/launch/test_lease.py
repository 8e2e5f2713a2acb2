"""The lease of a training folder, on a real bucket server."""

import concurrent.futures
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from contracts import storage
from contracts.errors import Preempted, TryAgain
from contracts.stage import run_stage
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from trainer import task
from trainer.launch.lease import held

FOLDER = "gs://bucket-1/line/train/leases/00"
RENEW_S, SILENCE_S = 0.05, 1.5


def hold(
    run: str, said: list[str] | None = None, lost: Callable[[], None] = lambda: None, **changes: Any
) -> AbstractContextManager[None]:
    given = {"renew_s": RENEW_S, "silence_s": SILENCE_S, **changes}
    return held(FOLDER, run, say=(said if said is not None else []).append, lost=lost, **given)


@pytest.fixture(autouse=True)
def _bucket(bucket_server: BucketServer) -> None:
    for name in storage.list_names(FOLDER):
        storage.delete(storage.join(FOLDER, name))


def test_a_run_at_work_is_named_to_the_next() -> None:
    said: list[str] = []
    with hold("run-1"), pytest.raises(TryAgain, match="run run-1 trains the same"), hold("run-2", said):
        raise AssertionError("two runs in one folder")
    assert "run run-1 holds this training folder" in said[0]


def test_what_has_ended_or_is_silent_makes_room() -> None:
    with hold("run-1"):
        pass
    said: list[str] = []
    with hold("run-2", said):
        assert not said, "a holder that says that it has ended is not waited for"
    # Killed: it renews nothing any more.
    storage.replace(f"{FOLDER}/000002.alive", b"1.000")
    with hold("run-3", said):
        assert said
    assert "000003.json" in storage.list_names(FOLDER)


def test_the_same_run_goes_on_at_once() -> None:
    said: list[str] = []
    storage.publish(f"{FOLDER}/000001.json", b'{"run": "run-1"}')
    storage.replace(f"{FOLDER}/000001.alive", b"1.000")
    with hold("run-1", said):
        assert not said
        assert "000002.json" in storage.list_names(FOLDER)


def test_an_attempt_that_leaves_late_ends_no_later_one_of_its_run() -> None:
    said: list[str] = []
    told, lost = threading.Event(), threading.Event()
    with hold("run-1", lost=lost.set), hold("run-1", said, lost=told.set) as _:
        assert lost.wait(60), "the earlier attempt is told"
    assert not told.is_set()
    first, second = hold("run-1"), hold("run-1")
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        # What the first one leaves says nothing of the second.
        with pytest.raises(TryAgain, match="run run-1"), hold("run-2"):
            raise AssertionError("two runs in one folder")


def test_of_runs_at_one_moment_one_gets_it() -> None:
    ready = threading.Barrier(4)

    def one(number: int) -> bool:
        ready.wait(60)
        try:
            with hold(f"run-{number}"):
                threading.Event().wait(3 * SILENCE_S)
        except TryAgain:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one, range(4))) == 1


def test_who_was_silent_for_too_long_is_told() -> None:
    lost = threading.Event()
    with hold("run-1", lost=lost.set):
        storage.publish(f"{FOLDER}/000002.json", b'{"run": "run-2"}')
        assert lost.wait(60)


def test_who_was_told_ends_without_waiting_to_be_killed() -> None:
    # As a launcher does that was told by SIGTERM. A Preempted would wait for a kill that nobody sends (endings.py).
    lost = threading.Event()
    with pytest.raises(TryAgain, match="has taken this training folder over") as caught, hold("run-1", lost=lost.set):
        storage.publish(f"{FOLDER}/000002.json", b'{"run": "run-2"}')
        assert lost.wait(60)
        raise Preempted("told to stop")
    assert not isinstance(caught.value, Preempted)
    with pytest.raises(Preempted), hold("run-2"):
        raise Preempted("told to stop")


@pytest.mark.slow
def test_a_run_of_a_line_holds_the_lease_of_what_it_trains(
    small_shards: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config(train={"epochs": 1})
    text = json.dumps({section: value for section, value in config.items() if section != "sharding"})

    def train(run: str) -> int:
        given = ["--line", "gs://bucket-1/line", "--run", run, "--shards", small_shards, "--config-json", text]
        return run_stage("train", task.execute, given, keep_attempt=True)

    assert train("run-1") == 0
    (name,) = storage.list_names("gs://bucket-1/line/train/leases")
    folder = f"gs://bucket-1/line/train/leases/{name}"
    assert json.loads(storage.read_bytes(f"{folder}/000001.json")) == {"run": "run-1"}
    assert storage.read_bytes(f"{folder}/000001.alive") == b"ended"
    storage.delete(f"gs://bucket-1/line/train/{name}/manifest.json")
    with held(folder, "run-2", say=lambda text: None, lost=lambda: None, renew_s=0.5):
        assert train("run-3") == 75
    assert "run run-2 trains the same in this line, and is at work" in capfd.readouterr().err
