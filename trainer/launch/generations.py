"""The launcher: starts the ranks, generation after generation, until training is finished or must not go on.

It ends with success when the training folder has its manifest, and only then. A generation that ends otherwise is
followed by another one, unless a user error explains it, somebody told this machine to stop, or attempt after attempt
has brought no new checkpoint.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config.resources import ResourcesSection
from contracts.errors import EXIT_USER_ERROR, ErrorDocument, Preempted, ShardlineError, ToldError, TryAgain
from trainer.checkpoint.discovery import Superseded
from trainer.launch.assignment import Assignment, decisive_end, has_stopped, is_preemption
from trainer.launch.attempts import CRASH_LOOP, AttemptCounter, JobRecord
from trainer.launch.meeting import Meeting
from trainer.launch.messages import Connection, ConnectionLost, Message, find_interface
from trainer.launch.nodes import Nodes
from trainer.launch.shared_output import is_shared, shown_output
from trainer.launch.torchrun import LocalRanks

# What the ranks of a machine may take to end by themselves once one has ended, or another machine has left. Those in a
# collective fail at once; what is blocked elsewhere is killed (torchrun would wait for 30 s).
PEERS_LIMIT_S = 5.0
# What the processes may take to end behind the budget of an agreed stop (resources.stop_budget_s).
STOP_SLACK_S = 5.0
_RETRY_S = 0.5
# What a platform, or a user's Ctrl-C, sends to make a process stop.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@dataclass
class StopFlag:
    """Whether this launcher was told to stop."""

    number: int | None = None

    def require_go_on(self) -> None:
        """Raise Preempted when it was."""
        if self.number is not None:
            raise self.reason()

    def reason(self) -> Preempted:
        """Say why."""
        name = signal.Signals(self.number or signal.SIGTERM).name
        return Preempted(f"training was told to stop ({name}); the same command continues from the newest checkpoint")


@dataclass
class Launcher:
    """What one machine's launcher works with."""

    assignment: Assignment
    nodes: Nodes
    resources: ResourcesSection
    record: JobRecord
    say: Callable[[str], None]
    stop: StopFlag = field(default_factory=StopFlag)

    def is_finished(self) -> bool:
        """Whether training is finished."""
        return storage.exists(storage.join(self.assignment.folder, MANIFEST_NAME))

    def counter(self) -> AttemptCounter:
        """Return the counter of attempts; for the first machine alone."""
        return AttemptCounter(self.record, self.assignment.folder, self.resources.max_attempts)


def run_ranks(launcher: Launcher) -> None:
    """Run the ranks of this machine, with those of the others, to the end of training.

    Raises:
        ShardlineError: What ended the job; a user error, and attempts in vain, also end its later attempts.
        Preempted: This machine was told to stop.
        TryAgain: Another machine did not come, or did not come back.
    """
    with _stop_signals(launcher.stop):
        try:
            _run_alone(launcher) if launcher.nodes.nodes == 1 else _run_together(launcher)
        except ToldError as error:
            # A later attempt of the same job may have superseded this one: the job goes on.
            ends = error.document.exit_code == EXIT_USER_ERROR and error.document.kind != Superseded.__name__
            if ends or error.document.kind == CRASH_LOOP:
                launcher.record.end(error.document)
            raise


# --- one machine ------------------------------------------------------------------------------------------------------


def _run_alone(launcher: Launcher) -> None:
    counter = launcher.counter()
    last: ErrorDocument | None = None
    while True:
        launcher.stop.require_go_on()
        generation = counter.begin(last)
        if isinstance(generation, ErrorDocument):
            raise ToldError(generation)
        last = run_generation(launcher, generation, launcher.assignment.attempt)
        if launcher.is_finished():
            return
        if last.exit_code == EXIT_USER_ERROR:
            raise ToldError(last)
        if is_preemption(last):
            counter.told_to_stop()
            raise Preempted(last.message)
        launcher.say(f"the ranks start again: {last.message}")


def run_generation(
    launcher: Launcher,
    generation: int,
    attempt: str,
    *,
    must_stop: Callable[[], bool] = lambda: False,
    interface: str | None = None,
) -> ErrorDocument:
    """Run the ranks of one generation until none is left, and return why they ended.

    Args:
        launcher: This machine's.
        generation: Number of this start of the job's ranks.
        attempt: The first machine's attempt.
        must_stop: Whether another machine's ranks have ended; asked ten times a second.
        interface: Network interface to the other machines.
    """
    assignment = launcher.assignment.model_copy(update={"generation": generation, "attempt": attempt})
    setup_timeout_s, stop_limit_s = launcher.resources.setup_timeout_s, launcher.resources.stop_budget_s + STOP_SLACK_S
    ranks = LocalRanks(assignment, launcher.nodes, setup_timeout_s, interface, stop_limit_s=stop_limit_s)
    deadline: float | None = None
    told = killed = False
    try:
        while not ranks.wait():
            now = time.monotonic()
            if launcher.stop.number is not None and not told:
                told = True
                ranks.ask_to_stop()
                deadline = now + stop_limit_s
            elif deadline is None and (ranks.one_has_ended() or must_stop()):
                stopping = any(has_stopped(end) for end in assignment.read_ends().values())
                deadline = now + (stop_limit_s if stopping else PEERS_LIMIT_S)
            elif deadline is not None and now > deadline:
                killed = True
                ranks.kill()
    finally:
        ranks.kill()
    return _why(launcher, assignment, ranks.returncode, killed=killed)


def _why(launcher: Launcher, assignment: Assignment, code: int | None, *, killed: bool) -> ErrorDocument:
    said = decisive_end(assignment.read_ends(), assignment.ranks)
    if said is not None and said.exit_code == EXIT_USER_ERROR:
        return said
    if launcher.stop.number is not None:
        return ErrorDocument.of(launcher.stop.reason())
    if said is not None:
        return said
    ended = "the last ones were killed" if killed else f"torchrun returned {code}"
    return ErrorDocument.of(
        TryAgain(
            f"ranks ended before training was finished, and none of machine {assignment.node_rank} said why ({ended})"
        )
    )


# --- several machines -------------------------------------------------------------------------------------------------


def _run_together(launcher: Launcher) -> None:
    nodes, resources = launcher.nodes, launcher.resources
    _wait_for_name(launcher)
    meeting = counter = None
    if nodes.is_primary:
        counter = launcher.counter()
        begin = counter.begin
        meeting = Meeting(
            nodes.port,
            nodes=nodes.nodes,
            job=_job(launcher),
            attempt=launcher.assignment.attempt,
            timeout_s=resources.setup_timeout_s,
            begin=lambda last, newest: begin(last, after=newest),
            is_finished=launcher.is_finished,
            is_shared=lambda hello: is_shared(launcher.assignment.folder, hello),
            newest=counter.generation,
            say=launcher.say,
        )
    try:
        _attend(launcher, counter)
    finally:
        if meeting is not None:
            meeting.close()


def _attend(launcher: Launcher, counter: AttemptCounter | None) -> None:
    """Take part in generations until the first machine says that it is over.

    Args:
        launcher: This machine's.
        counter: The first machine's.
    """
    generation = -1
    while True:
        connection = _join(launcher, generation)
        if connection is None:
            return
        try:
            interface = _interface_to_others(launcher.nodes, connection)
            start = _present(launcher, connection, generation)
            while start is not None:
                generation = start.generation
                end = _run_and_listen(launcher, connection, start, interface)
                if counter is not None and has_stopped(end):
                    # While this machine may live on, and before the others hear of its end: none begins until then.
                    counter.told_to_stop()
                if is_preemption(end):
                    with suppress(ConnectionLost):
                        connection.send(Message(kind="ended", generation=generation, document=end))
                    if launcher.is_finished():
                        return
                    raise Preempted(end.message)
                connection.send(Message(kind="ended", generation=generation, document=end))
                start = _wait_for_start(launcher, connection)
            return
        except ConnectionLost as lost:
            launcher.say(f"the first machine is gone ({lost}); waiting for it to come back")
        finally:
            connection.close()


def _join(launcher: Launcher, generation: int) -> Connection | None:
    """Connect to the first machine's launcher; None when training turns out to be finished.

    Raises:
        TryAgain: It does not answer in time.
    """
    nodes, limit_s = launcher.nodes, launcher.resources.setup_timeout_s
    host = "localhost" if nodes.is_primary else nodes.host
    deadline = time.monotonic() + limit_s
    said = False
    while True:
        launcher.stop.require_go_on()
        try:
            connection = Connection(socket.create_connection((host, nodes.port), timeout=10))
            connection.socket.settimeout(None)
            return connection
        except OSError as error:
            if generation >= 0 and launcher.is_finished():
                # The first machine has ended, as it should, before its word arrived.
                return None
            if time.monotonic() > deadline:
                raise TryAgain(
                    f"the first machine ({host}:{nodes.port}) did not answer within {limit_s:.0f} s "
                    f"(resources.setup_timeout_s): {error}"
                ) from None
            if not said:
                said = True
                launcher.say(f"waiting for the first machine, {host}:{nodes.port}, for up to {limit_s:.0f} s")
        time.sleep(_RETRY_S)


def _present(launcher: Launcher, connection: Connection, generation: int) -> Message | None:
    """Say which machine this is, and return the first word to start a generation, as `_wait_for_start` does."""
    hello = Message(
        kind="hello",
        node_rank=launcher.nodes.node_rank,
        job=_job(launcher),
        generation=generation,
        output=launcher.assignment.folder,
    )
    # The first machine has claimed the folder by now: it meets after that.
    with shown_output(hello) as shown:
        connection.send(shown)
        return _wait_for_start(launcher, connection)


def _wait_for_start(launcher: Launcher, connection: Connection) -> Message | None:
    """Return the word to start a generation; None when training is finished.

    Raises:
        ToldError: The job is over, and why.
    """
    while True:
        launcher.stop.require_go_on()
        message = connection.receive(_RETRY_S)
        if message is None:
            continue
        if message.kind == "start":
            return message
        if message.kind == "finished":
            return None
        if message.kind == "over":
            raise _over(message.document)


def _run_and_listen(launcher: Launcher, connection: Connection, start: Message, interface: str | None) -> ErrorDocument:
    """Run the ranks of a generation; the word to stop, and the loss of the first machine, end them.

    Raises:
        ConnectionLost: The first machine is gone, and so are the ranks.
        ToldError: The job is over.
    """
    gone: ConnectionLost | None = None
    over: Message | None = None

    def must_stop() -> bool:
        nonlocal gone, over
        try:
            message = connection.receive(0)
        except ConnectionLost as lost:
            gone = lost
            return True
        if message is not None and message.kind in ("over", "finished"):
            over = message
        return message is not None

    end = run_generation(launcher, start.generation, start.attempt, must_stop=must_stop, interface=interface)
    if is_preemption(end):
        return end
    if gone is not None:
        raise gone
    if over is not None and over.kind == "over":
        raise _over(over.document)
    return end


def _over(document: ErrorDocument | None) -> ShardlineError:
    if document is None:
        return TryAgain("the first machine has ended the job and did not say why")
    return document.to_error()


def _wait_for_name(launcher: Launcher) -> None:
    """Wait until the first machine's name is known: machines start side by side, and names take a while.

    Raises:
        TryAgain: It is not in time.
    """
    host, limit_s = launcher.nodes.host, launcher.resources.setup_timeout_s
    deadline = time.monotonic() + limit_s
    said = False
    while True:
        launcher.stop.require_go_on()
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TryAgain(
                    f"the first machine's name, {host}, was not known within {limit_s:.0f} s "
                    f"(resources.setup_timeout_s): {error}"
                ) from None
        if not said:
            said = True
            launcher.say(f"waiting for the first machine's name, {host}, to be known, for up to {limit_s:.0f} s")
        time.sleep(_RETRY_S)


def _job(launcher: Launcher) -> str:
    """Return what must be equal on all machines."""
    assignment = launcher.assignment
    # The name of the job comes first: it is what a person knows.
    name = launcher.nodes.job_id or "a job without an id"
    return f"{name} (training {assignment.fingerprint}, {assignment.nodes} machines of {assignment.ranks} ranks)"


def _interface_to_others(nodes: Nodes, connection: Connection) -> str | None:
    """Return the interface by which this machine reaches the others; for the first one that of its own name."""
    try:
        address = socket.gethostbyname(nodes.host) if nodes.is_primary else connection.socket.getsockname()[0]
    except OSError:
        return None
    return find_interface(address.removeprefix("::ffff:"))


@contextmanager
def _stop_signals(flag: StopFlag) -> Iterator[None]:
    """Remember a signal to stop instead of dying of it; the ranks are told, and end in agreement."""

    def remember(number: int, frame: FrameType | None) -> None:
        flag.number = number

    previous = {number: signal.signal(number, remember) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
