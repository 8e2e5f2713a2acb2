"""Launchers agree on generations; here they are sockets without ranks."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError, ErrorDocument, Preempted, TryAgain
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine, Network
from trainer.launch import meeting as meeting_module
from trainer.launch import shared_output
from trainer.launch.meeting import Meeting
from trainer.launch.messages import Connection, ConnectionLost, Message, find_interface

LIMIT_S = 60
BAD = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
CRASH = ErrorDocument(kind="RuntimeError", exit_code=70, message="RuntimeError: crash")
STOPPED = ErrorDocument.of(Preempted("SIGTERM"))


class Job:
    """What the first machine's launcher gives to the meeting."""

    def __init__(self, port: int) -> None:
        self.port, self.meeting = port, None
        self.said: list[str] = []
        self.begun: list[tuple[ErrorDocument | None, int]] = []
        self.finished = threading.Event()
        self.most = 100
        self.open: list[Connection] = []

    def serve(self, **changes: Any) -> Meeting:
        arguments = {"nodes": 2, "job": "a job", "attempt": "attempt-1", "timeout_s": LIMIT_S, **changes}
        arguments.setdefault("is_shared", lambda hello: True)
        self.meeting = Meeting(
            self.port, begin=self.begin, is_finished=self.finished.is_set, say=self.said.append, **arguments
        )
        return self.meeting

    def begin(self, last: ErrorDocument | None, newest: int) -> int | ErrorDocument:
        self.begun.append((last, newest))
        return newest + 1 if len(self.begun) <= self.most else CRASH

    def join(self, node_rank: int, generation: int = -1, job: str = "a job") -> Connection:
        connection = Connection(socket.create_connection(("localhost", self.port), timeout=LIMIT_S))
        connection.send(Message(kind="hello", node_rank=node_rank, job=job, generation=generation))
        self.open.append(connection)
        return connection


@pytest.fixture
def job(port: int) -> Iterator[Job]:
    given = Job(port)
    yield given
    for connection in given.open:
        connection.close()
    if given.meeting is not None:
        given.meeting.close()


def hear(connection: Connection) -> Message:
    """Return the next message; fail when none comes."""
    message = connection.receive(LIMIT_S)
    assert message is not None
    return message


def hears_nothing(connection: Connection) -> bool:
    return connection.receive(0.5) is None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(connection: Connection, generation: int, document: ErrorDocument | None = None) -> None:
    connection.send(Message(kind="ended", generation=generation, document=document))


def test_a_generation_begins_when_all_are_there_and_ends_for_all(job: Job) -> None:
    job.serve()
    second = job.join(1)
    assert hears_nothing(second)
    first = job.join(0)
    for launcher in (first, second):
        assert hear(launcher) == Message(kind="start", generation=0, attempt="attempt-1")
    end(second, 0, CRASH)
    assert hear(first) == Message(kind="stop", generation=0)
    # Nobody starts before the last one has ended.
    assert hears_nothing(second)
    end(first, 0)
    for launcher in (first, second):
        assert hear(launcher).generation == 1
    assert job.begun == [(None, -1), (CRASH, 0)]
    job.finished.set()
    end(first, 1)
    assert hear(second).kind == "stop"
    end(second, 1)
    assert {hear(first).kind, hear(second).kind} == {"finished"}


def test_a_lost_machine_comes_back(job: Job) -> None:
    job.serve()
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}
    second.close()
    assert hear(first).kind == "stop"
    again = job.join(1)
    assert hears_nothing(again), "the first machine still runs its ranks"
    end(first, 0)
    assert {hear(first).generation, hear(again).generation} == {1}
    assert any(said.startswith("machine 1 is gone") for said in job.said)


def test_a_lost_first_machine_learns_the_generation_from_the_others(job: Job) -> None:
    job.serve()
    second, first = job.join(1, generation=41), job.join(0)
    assert {hear(first).generation, hear(second).generation} == {42}


def test_a_machine_that_went_without_a_word_is_replaced(job: Job) -> None:
    job.serve()
    first, _ = job.join(0), job.join(1)
    assert hear(first).generation == 0
    again = job.join(1)
    assert hear(first).kind == "stop"
    end(first, 0)
    assert {hear(first).generation, hear(again).generation} == {1}


def test_a_machine_that_was_told_to_stop_is_not_counted_in(job: Job) -> None:
    """It is about to leave: a start with it would be an attempt in vain."""
    job.serve()
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}
    end(second, 0, STOPPED)
    assert hear(first).kind == "stop"
    end(first, 0)
    assert hears_nothing(first)
    assert len(job.begun) == 1
    again = job.join(1)
    assert {hear(first).generation, hear(again).generation} == {1}


def test_a_user_error_of_one_machine_ends_all(job: Job) -> None:
    job.serve()
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}
    end(first, 0, CRASH)
    assert hear(second).kind == "stop"
    end(second, 0, BAD)
    for launcher in (first, second):
        assert hear(launcher) == Message(kind="over", document=BAD)


def test_attempts_in_vain_end_all(job: Job) -> None:
    job.most = 1
    job.serve()
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}
    end(first, 0, CRASH)
    assert hear(second).kind == "stop"
    end(second, 0)
    assert {hear(first).document, hear(second).document} == {CRASH}


def test_a_machine_that_never_comes_ends_all_for_another_attempt(job: Job) -> None:
    job.serve(timeout_s=0.1)
    document = hear(job.join(0)).document
    assert document is not None
    assert document.exit_code == TryAgain.exit_code
    assert "machine 1 of 2 did not come" in document.message


@pytest.mark.parametrize(("node_rank", "name"), [(1, "another job"), (2, "a job"), (-1, "a job")])
def test_a_launcher_of_another_job_is_refused(job: Job, node_rank: int, name: str) -> None:
    job.serve()
    document = hear(job.join(node_rank, job=name)).document
    assert document is not None
    assert document.exit_code == 2
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}


def test_a_machine_with_an_output_of_its_own_ends_a_job_before_it_begins(job: Job) -> None:
    job.serve(is_shared=lambda hello: False)
    second = job.join(1)
    first = job.join(0)
    for launcher in (second, first):
        document = hear(launcher).document
        assert document is not None
        assert document.exit_code == 2
        assert "machine 1 does not share its output" in document.message
    assert job.begun == []


def test_a_missing_mount_ends_no_job_that_is_under_way(job: Job) -> None:
    """The machine that came in the place of a lost one: its platform may send another."""
    mounted = threading.Event()
    job.serve(is_shared=lambda hello: mounted.is_set())
    first = job.join(0, generation=3)
    wait_until(lambda: len(job.meeting._attendants) == 1)  # type: ignore[attr-defined]
    document = hear(job.join(1)).document
    assert document is not None
    assert document.exit_code == 2
    assert hears_nothing(first)
    mounted.set()
    second = job.join(1)
    assert {hear(first).generation, hear(second).generation} == {4}


def test_an_output_is_shared_where_one_machine_sees_what_the_other_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_output, "_PATIENCE_S", 0.0)
    mine, mounted, own = (f"file://{tmp_path / name}" for name in ("mine", "mounted", "own"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "mine")
    for folder, shared in ((mine, True), (mounted, True), (own, False)):
        with shared_output.shown_output(folder) as token:
            hello = Message(kind="hello", output=folder, token=token)
            assert shared_output.is_shared(mine, hello) == shared
        assert not shared_output.is_shared(mine, hello), "it is gone again"
    (tmp_path / "file").touch()
    with shared_output.shown_output(f"file://{tmp_path / 'file'}") as token:
        assert not shared_output.is_shared(mine, Message(kind="hello", output=mine, token=token))
    for output, shared in (("gs://b/f", True), ("gs://c/f", False), (mine, False)):
        assert shared_output.is_shared("gs://b/f", Message(kind="hello", output=output)) == shared


def test_launchers_without_a_shared_output_end_before_any_rank(port: int, small_shards: str, tmp_path: Path) -> None:
    """They trained to the end, and the second one found no result."""
    config = small_config(resources={"ranks": 1})
    net = Network(port, 2)
    machines = [Machine(tmp_path / str(node), small_shards, config, node=node, net=net) for node in range(2)]
    for machine in machines:
        machine.start()
    try:
        assert [machine.wait() for machine in machines] == [2, 2]
        for machine in machines:
            assert "machine 1 does not share its output with the first machine" in machine.stderr()
            assert not [event for event in machine.events() if event["event"] == "life"]
    finally:
        for machine in machines:
            machine.end()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b'{"kind": "ended"}\n', b"x" * 3_000_000])
def test_what_is_no_launcher_is_hung_up_on(job: Job, line: bytes) -> None:
    job.serve()
    stranger = socket.create_connection(("localhost", job.port), timeout=LIMIT_S)
    with stranger:
        try:
            stranger.sendall(line)
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}


def test_an_error_of_storage_reaches_all(job: Job) -> None:
    def no_bucket(last: ErrorDocument | None, newest: int) -> int | ErrorDocument:
        raise TryAgain("the bucket does not answer")

    job.begin = no_bucket  # type: ignore[method-assign]
    job.serve()
    for launcher in (job.join(0), job.join(1)):
        document = hear(launcher).document
        assert document is not None
        assert (document.exit_code, document.message) == (75, "the bucket does not answer")


def test_a_port_of_another_process_is_a_user_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_PORT_PATIENCE_S", 0.1)
    with socket.create_server(("", job.port)), pytest.raises(ConfigError, match="launchers meet"):
        job.serve()


def test_closing_tells_nobody_that_it_is_over(job: Job) -> None:
    """The first machine is preempted: the others wait for it."""
    meeting = job.serve()
    second = job.join(1)
    wait_until(lambda: len(meeting._attendants) == 1)
    meeting.close()
    with pytest.raises(ConnectionLost):
        hear(second)


def test_the_interface_of_an_address() -> None:
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("192.0.2.1") is None
