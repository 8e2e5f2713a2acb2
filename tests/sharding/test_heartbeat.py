"""Signs of life: shown while the work lasts, and missed when they stop."""

import pytest

from contracts import storage
from contracts.errors import StorageError, TryAgain
from sharding.job import REVISION, JobHandle
from sharding.runners import heartbeat
from sharding.runners.heartbeat import Monitor, beating


@pytest.fixture
def job(tmp_path):
    return JobHandle(storage.normalise(tmp_path), "f" * 16, "listing", REVISION, 0.0, 0, beats=True)


def count_marks(job):
    return len(storage.list_names(storage.join(job.work_uri, "alive")))


def mark(job, text):
    storage.replace(storage.join(job.work_uri, "alive", "1"), text)


def test_marks_are_there_while_the_block_runs_and_gone_after_an_error(job):
    with pytest.raises(ValueError, match="mine"), beating(job):
        while not count_marks(job):
            pass
        raise ValueError("mine")
    assert count_marks(job) == 0


def test_no_marks_where_none_are_asked_for(job):
    with beating(JobHandle(**{**vars(job), "beats": False})):
        assert count_marks(job) == 0


def test_silence_counts_from_the_last_change(job, monkeypatch):
    now = 100.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    monitor = Monitor(job.work_uri, 10, 300)
    assert monitor.find_silent() is None
    mark(job, b"1")
    storage.replace(storage.join(job.work_uri, "record-00001"), b"no mark")
    assert monitor.find_silent() is None
    now = 109.0
    mark(job, b"2")
    assert monitor.find_silent() is None
    now = 118.0
    assert monitor.find_silent() is None
    now = 120.0
    assert monitor.find_silent() == 11.0
    storage.delete(storage.join(job.work_uri, "alive", "1"))
    assert monitor.find_silent() is None


def test_a_worker_that_stopped_is_told_from_one_that_works(job, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_INTERVAL_S", 0.2)
    monitor = Monitor(job.work_uri, 10, 300)
    assert not monitor.find_dead()
    with beating(job):
        while not count_marks(job):
            pass
        assert not monitor.find_dead()
    mark(job, b"1")
    assert monitor.find_dead()


def test_nobody_at_work_is_noticed_before_the_first_step_and_between_two(job, monkeypatch):
    now = 100.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    monitor = Monitor(job.work_uri, 10, 30)
    for begin in (100.0, 140.0):
        now = begin + 30
        assert monitor.find_silent() is None and monitor.find_idle() is None
        now = begin + 31
        assert monitor.find_silent() is None and monitor.find_idle() == 31.0
        now = begin + 40
        mark(job, b"1")
        assert monitor.find_silent() is None and monitor.find_idle() is None
        storage.delete(storage.join(job.work_uri, "alive", "1"))


def test_a_sign_that_cannot_be_given_is_no_death(job, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_INTERVAL_S", 0.01)
    replace, errors = (
        storage.replace,
        iter([TryAgain("a storm"), OSError(28, "full"), StorageError("x", allowed="", todo="")]),
    )

    def fail(uri, content):
        if error := next(errors, None):
            raise error
        replace(uri, content)

    def keep(_):
        raise TryAgain("a storm")

    monkeypatch.setattr(storage, "replace", fail)
    monkeypatch.setattr(storage, "delete", keep)
    with beating(job):
        while not count_marks(job):
            pass
