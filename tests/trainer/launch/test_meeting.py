"""Launchers agree on generations; here they are sockets without ranks."""

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.config import ResourcesSection
from contracts.errors import ConfigError, ErrorDocument, Preempted, ToldError, TryAgain
from trainer.launch import generations, shared_output
from trainer.launch import meeting as meeting_module
from trainer.launch.assignment import Assignment
from trainer.launch.attempts import JobRecord
from trainer.launch.generations import Launcher
from trainer.launch.meeting import Meeting
from trainer.launch.messages import Connection, ConnectionLost, Message, find_interface
from trainer.launch.nodes import Nodes

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


def test_memory_that_runs_out_is_told_whoever_says_first_that_a_peer_is_lost(job: Job) -> None:
    full = ErrorDocument(kind="OutOfMemory", exit_code=75, message="m", step=5)
    job.serve()
    first, second = job.join(0), job.join(1)
    assert {hear(first).generation, hear(second).generation} == {0}
    end(first, 0, CRASH)
    assert hear(second).kind == "stop"
    end(second, 0, full)
    assert {hear(first).generation, hear(second).generation} == {1}
    assert job.begun[1] == (full, 0)


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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_OUTPUT_PATIENCE_S", 0.3)


def test_machines_with_outputs_of_their_own_end_a_job_before_it_begins(job: Job, impatient: None) -> None:
    job.serve(nodes=3, is_shared=lambda hello: False)
    launchers = [job.join(node_rank) for node_rank in (1, 2, 0)]
    for launcher in launchers:
        document = hear(launcher).document
        assert document is not None
        assert document.exit_code == 2
        assert "does not share its output" in document.message
    assert job.begun == []


@pytest.mark.parametrize("known", ["by the first machine's launcher", "by the job's record"])
def test_a_missing_mount_ends_no_job_that_is_under_way(job: Job, impatient: None, known: str) -> None:
    """The machine that came in the place of a lost one: its platform may send another."""
    mounted = threading.Event()
    of_launcher, of_record = (3, -1) if known == "by the first machine's launcher" else (-1, 3)
    job.serve(is_shared=lambda hello: mounted.is_set(), newest=of_record)
    first = job.join(0, generation=of_launcher)
    wait_until(lambda: len(job.meeting._attendants) == 1)  # type: ignore[attr-defined]
    document = hear(job.join(1)).document
    assert document is not None
    # With 2 the launcher would close the job for every later attempt.
    assert document.exit_code == 75
    assert "machine 1 does not share its output" in document.message
    assert hears_nothing(first)
    mounted.set()
    second = job.join(1)
    assert {hear(first).generation, hear(second).generation} == {4}


def test_a_slow_mount_is_waited_for_and_keeps_nobody_else(job: Job) -> None:
    mounted = threading.Event()
    meeting = job.serve(nodes=3, is_shared=lambda hello: hello.node_rank == 2 or mounted.is_set())
    slow = job.join(1)
    wait_until(lambda: bool(meeting._unseen))
    meeting._timeout_s = 0.1
    first, third = job.join(0), job.join(2)
    wait_until(lambda: len(meeting._attendants) == 2)
    assert hears_nothing(slow), "nor has the time for those that do not come ended the job"
    mounted.set()
    assert {hear(launcher).generation for launcher in (first, slow, third)} == {0}


def test_an_output_that_cannot_be_written_is_told_as_that(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job.serve(is_shared=lambda hello: False)
    first, second = job.join(0), Connection(socket.create_connection(("localhost", job.port), timeout=LIMIT_S))
    hello = Message(kind="hello", node_rank=1, job="a job", output=f"file://{tmp_path / 'file'}")
    with shared_output.shown_output(hello) as shown:
        second.send(shown)
        for launcher in (first, second):
            document = hear(launcher).document
            assert document is not None
            assert document.exit_code == 2
            assert "file/.machine-1 cannot be written: " in document.message
    second.close()


def test_a_full_disk_ends_one_machine_for_another_attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(uri: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage, "replace", full)
    hello = Message(kind="hello", node_rank=1, job="a job", output="file:///output")
    job.serve()
    first, second = job.join(0), Connection(socket.create_connection(("localhost", job.port), timeout=LIMIT_S))
    with shared_output.shown_output(hello) as shown:
        second.send(shown)
        document = hear(second).document
    assert document is not None
    assert document.exit_code == 75
    assert "machine 1 cannot write to its output, /output: No space left on device" in document.message
    assert hears_nothing(first)
    second.close()


def test_an_output_is_shared_where_one_machine_sees_what_the_other_writes(tmp_path: Path) -> None:
    mine, mounted, own = (f"file://{tmp_path / name}" for name in ("mine", "mounted", "own"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "mine")
    # What a launcher that was killed has left proves nothing, and does not stay.
    (tmp_path / "mine" / ".machine-1").write_text("killed")
    for folder, shared in ((own, False), (mine, True), (mounted, True)):
        with shared_output.shown_output(Message(kind="hello", node_rank=1, output=folder)) as hello:
            assert shared_output.is_shared(mine, hello) == shared
    assert not shared_output.is_shared(mine, hello), "it is gone again"
    assert list((tmp_path / "mine").iterdir()) == []
    for output, shared in (("gs://b/f", True), ("gs://c/f", False), (mine, False)):
        assert shared_output.is_shared("gs://b/f", Message(kind="hello", output=output)) == shared


def test_launchers_without_a_shared_output_end_before_any_rank(
    port: int, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They trained to the end, and the second one found no result."""
    started = threading.Event()
    monkeypatch.setattr(generations, "run_generation", lambda *arguments, **options: started.set())
    launchers = [launcher_of(tmp_path / str(node), port, node) for node in range(2)]
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(generations._run_together, launcher) for launcher in launchers]
    for end in ends:
        error = end.exception()
        assert isinstance(error, ToldError)
        assert error.exit_code == 2
        assert "machine 1 does not share its output with the first machine" in str(error)
    assert not started.is_set()


@pytest.mark.parametrize(("ended", "fruitless"), [(STOPPED, 0), (CRASH, 1)])
def test_a_preemption_is_not_counted_before_anything_is_closed(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: ErrorDocument, fruitless: int
) -> None:
    """A crash is counted also where the machine is told to stop while it waits for the next start."""
    launcher = launcher_of(tmp_path, port, 0, "job-1")
    kept: list[int] = []
    close = Meeting.close

    def closing(meeting: Meeting) -> None:
        kept.append(launcher.record.read().fruitless)
        close(meeting)

    def run(launcher: Launcher, *arguments: Any, **options: Any) -> ErrorDocument:
        launcher.stop.number = signal.SIGTERM
        return ended

    monkeypatch.setattr(Meeting, "close", closing)
    monkeypatch.setattr(generations, "run_generation", run)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(generations._run_together, launcher)
        wait_until(lambda: can_connect(port))
        other = Connection(socket.create_connection(("localhost", port), timeout=LIMIT_S))
        with shared_output.shown_output(hello_of(launcher)) as hello:
            other.send(hello)
            assert hear(other).generation == 0
        assert isinstance(first.exception(), Preempted)
    other.close()
    assert [*kept, launcher.record.read().fruitless] == [fruitless, fruitless]


def hello_of(first: Launcher) -> Message:
    """Return what the second machine says to a first one."""
    return Message(kind="hello", node_rank=1, job=generations._job(first), output=first.assignment.folder)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=LIMIT_S).close()
    except OSError:
        return False
    return True


def launcher_of(folder: Path, port: int, node: int, job_id: str = "") -> Launcher:
    """Return a machine's launcher of two, on loopback."""
    place = storage.normalise(folder)
    nodes = Nodes(node, 2, "localhost", port, "local", job_id)
    assignment = Assignment(
        config={},
        shards="file:///shards",
        profile=None,
        folder=place,
        fingerprint="f",
        made_from={},
        attempt="a",
        attempt_folder=str(folder),
        ranks=1,
        threads=1,
        nodes=2,
        node_rank=node,
    )
    resources = ResourcesSection(setup_timeout_s=LIMIT_S)
    return Launcher(assignment, nodes, resources, JobRecord(place, job_id), print)


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
