"""Launcher of one machine: restarts its ranks until training is finished or must end.

If one rank ends, the others fail in their next collective or are killed after `PEERS_LIMIT_S`. Then all ranks of all
machines restart from the newest checkpoint (docs/launch.md).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config.resources import ResourcesSection
from contracts.errors import EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument, ForwardedError, Preempted, TryAgain
from contracts.process import thread_environment
from trainer.checkpoint.discovery import Superseded
from trainer.launch.assignment import Assignment, decisive_end, has_stopped, is_preemption
from trainer.launch.attempts import CRASH_LOOP, AttemptCounter, JobRecord, StartCounter
from trainer.launch.nodes import Nodes, without_ranks

RANK_MODULE = "trainer.worker"
LOOPBACK = "127.0.0.1"
_LOG_LEVEL_VARIABLE = "TORCH_CPP_LOG_LEVEL"
STORE_VARIABLE = "SHARDLINE_STORE_FD"
"""Descriptor of the listening socket of the ranks' store, served by rank 0."""


@dataclass(frozen=True)
class StoreAddress:
    """Address of the store of a start, served by rank 0."""

    host: str
    port: int
    listener: socket.socket | None = None
    """On the first machine: socket bound to `port`, inherited by rank 0, so that no other process takes the port."""
    interface: str | None = None
    """Network interface for gloo; None: gloo chooses."""


class LocalRanks:
    """Rank processes of this machine in one start."""

    def __init__(self, path: Path, assignment: Assignment, address: StoreAddress, module: str = RANK_MODULE) -> None:
        shared = {
            **without_ranks(os.environ),
            **thread_environment(assignment.threads),
            "WORLD_SIZE": str(assignment.world_size),
            "LOCAL_WORLD_SIZE": str(assignment.ranks),
            "MASTER_ADDR": address.host,
            "MASTER_PORT": str(address.port),
            "PYTHONUNBUFFERED": "1",
        }
        if address.interface is not None:
            # By default gloo resolves the host name, which may be wrong in a container.
            shared.setdefault("GLOO_SOCKET_IFNAME", address.interface)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for local_rank in range(assignment.ranks):
                rank = assignment.node_rank * assignment.ranks + local_rank
                rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
                inherited = []
                if rank == 0 and address.listener is not None:
                    inherited = [address.listener.fileno()]
                    rank_variables[STORE_VARIABLE] = str(inherited[0])
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, str(path), str(os.getpid())],
                        env={**shared, **rank_variables},
                        stdin=subprocess.DEVNULL,
                        # The last line of stdout is the stage's result.
                        stdout=sys.stderr,
                        pass_fds=inherited,
                        # Loader processes are killed with their rank; Ctrl-C reaches the launcher only.
                        start_new_session=True,
                    )
                )
        except BaseException:
            self.kill()
            raise

    def count_ended(self) -> int:
        """Return the number of ended ranks."""
        return sum(process.poll() is not None for process in self._processes)

    def describe_killed(self) -> str:
        """Describe ranks killed by a signal; empty if none."""
        codes = {local_rank: process.returncode for local_rank, process in enumerate(self._processes)}
        ended = [f"local rank {n}: {signal.Signals(-code).name}" for n, code in codes.items() if code and code < 0]
        return ", ".join(ended)

    def signal(self, number: int) -> None:
        """Send a stop signal to each rank: they agree on a step, save it and exit."""
        for process in self._processes:
            process.send_signal(number)

    def kill(self) -> None:
        """Kill the ranks and their loader processes, and wait for the ranks."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()


# Seconds for ranks to end after one ended or another machine left; then they are killed.
PEERS_LIMIT_S = 5.0
# Seconds for processes to end after resources.stop_budget_s.
STOP_SLACK_S = 5.0
_POLL_S = 0.05
# Stop signals of platforms and of Ctrl-C.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """The stop signal that this launcher received, if any."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._interrupts = False

    def reason(self) -> Preempted:
        """Return the error that ends this launcher."""
        name = signal.Signals(self.number or signal.SIGTERM).name
        return Preempted(f"training was told to stop ({name}); the same command continues from the newest checkpoint")

    def check(self) -> None:
        """Raise Preempted if a stop signal was received."""
        if self.number is not None:
            raise self.reason()

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise Preempted from the signal handler, for blocking library calls in the block."""
        self._interrupts = True
        try:
            # After setting the flag, so that no signal is lost.
            self.check()
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Handle stop signals in the block by recording them."""

        def record(number: int, frame: FrameType | None) -> None:
            self.number = number
            if self._interrupts:
                self._interrupts = False
                raise self.reason()

        previous = {number: signal.signal(number, record) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@dataclass
class Launcher:
    """Context of one machine's launcher; runs one start at a time."""

    assignment: Assignment
    nodes: Nodes
    resources: ResourcesSection
    record: JobRecord
    log: Callable[[str], None]
    stop: StopFlag = field(default_factory=StopFlag)
    rank_module: str = RANK_MODULE
    """Python module of a rank."""

    def is_overdue(self) -> bool:
        """Return whether to kill the ranks at once; polled while they run."""
        return False

    def is_finished(self) -> bool:
        """Return whether the training folder has its manifest."""
        return storage.exists(storage.join(self.assignment.folder, MANIFEST_NAME))

    def counter(self) -> StartCounter:
        """Return the counter of starts, for the first machine's launcher."""
        return AttemptCounter(self.record, self.assignment.folder, self.resources.max_attempts)

    def run_start(
        self, attempt: str, address: StoreAddress, *, must_stop: Callable[[], bool] = lambda: False
    ) -> ErrorDocument | None:
        """Run the ranks of this machine once; return why they ended, or None if training is finished.

        `attempt` is the first machine's. `must_stop` is polled; true if another machine left this start.
        """
        assignment = self.assignment.model_copy(update={"attempt": attempt})
        try:
            assignment.clear_ends()
            ranks = LocalRanks(assignment.write(), assignment, address, self.rank_module)
        finally:
            if address.listener is not None:
                # If rank 0 dies, its peers' connections are refused at once.
                address.listener.close()
        try:
            cause = self._wait(assignment, ranks, must_stop)
        finally:
            ranks.kill()
        return None if self.is_finished() else self._find_reason(assignment, cause)

    def _wait(self, assignment: Assignment, ranks: LocalRanks, must_stop: Callable[[], bool]) -> str:
        """Wait for all ranks and kill them after their time limit; return how the first of them was killed."""
        ending_since: float | None = None
        is_saving = was_signalled = False
        cause = ""
        while (ended := ranks.count_ended()) < assignment.ranks:
            now = time.monotonic()
            cause = cause or ranks.describe_killed()
            if self.is_overdue():
                ranks.kill()
                return "the launcher killed them"
            if self.stop.number is not None and not was_signalled:
                ranks.signal(self.stop.number)
                was_signalled, is_saving = True, ending_since is None
                ending_since = ending_since or now
            elif ending_since is None and (ended or must_stop()):
                ending_since = now
            if ending_since is not None:
                limit_s = PEERS_LIMIT_S
                if is_saving or assignment.is_stopping():
                    limit_s = self.resources.stop_budget_s + STOP_SLACK_S
                if now - ending_since > limit_s:
                    ranks.kill()
                    return cause or f"the launcher killed what was left after {limit_s:g} s"
            time.sleep(_POLL_S)
        return cause or ranks.describe_killed()

    def _find_reason(self, assignment: Assignment, cause: str) -> ErrorDocument:
        recorded = decisive_end(assignment.read_ends(), assignment.ranks)
        if self.stop.number is not None and (
            recorded is None or not (is_preemption(recorded) or recorded.exit_code == EXIT_USER_ERROR)
        ):
            return ErrorDocument.of(self.stop.reason())
        if recorded is None:
            return ErrorDocument.of(
                TryAgain(f"ranks of machine {assignment.node_rank} ended without an error ({cause or 'no signal'})")
            )
        if cause and recorded.exit_code == EXIT_TRY_AGAIN and not has_stopped(recorded):
            return recorded.model_copy(update={"message": f"{recorded.message} ({cause})"})
        return recorded


def raise_final(end: ErrorDocument, counter: StartCounter | None) -> None:
    """Raise the error of a start if it ends this launcher: a user error, or a stop of this machine."""
    if counter is not None and has_stopped(end):
        counter.uncount_start()
    if end.exit_code == EXIT_USER_ERROR:
        raise ForwardedError(end)
    if is_preemption(end):
        raise Preempted(end.message)


def run_ranks(launcher: Launcher) -> None:
    """Run the ranks of this machine to the end of training.

    Raises:
        ForwardedError: The error that ended the job; user errors and crash loops also end later attempts.
        Preempted: This machine received a stop signal.
        TryAgain: Another machine did not join, or did not return.
    """
    with launcher.stop.receiving():
        try:
            if launcher.nodes.nodes == 1:
                _run_alone(launcher)
            else:
                _import_torch()
                from trainer.launch.rendezvous import run_together

                run_together(launcher)
        except ForwardedError as error:
            # Superseded by a later attempt of the same job: the job continues.
            is_final = error.document.exit_code == EXIT_USER_ERROR and error.document.kind != Superseded.__name__
            if is_final or error.document.kind == CRASH_LOOP:
                launcher.record.end(error.document)
            raise


def _import_torch() -> None:
    """Import torch with C++ logs that omit stacks of lost connections."""
    level = os.environ.get(_LOG_LEVEL_VARIABLE)
    os.environ[_LOG_LEVEL_VARIABLE] = level or "ERROR"
    import torch  # noqa: F401

    if level is None:
        del os.environ[_LOG_LEVEL_VARIABLE]


def _run_alone(launcher: Launcher) -> None:
    counter = launcher.counter()
    end: ErrorDocument | None = None
    while True:
        launcher.stop.check()
        if (refusal := counter.begin(end)) is not None:
            raise ForwardedError(refusal)
        listener = socket.create_server((LOOPBACK, 0))
        # The host name need not resolve.
        address = StoreAddress(LOOPBACK, listener.getsockname()[1], listener)
        end = launcher.run_start(launcher.assignment.attempt, address)
        if end is None:
            return
        raise_final(end, counter)
        launcher.log(f"the ranks start again: {end.message}")
