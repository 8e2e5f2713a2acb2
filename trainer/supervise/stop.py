"""Stopping a rank: stop requests by signal or notice, time budget, and process exit.

    signal, notice -> StopRequest.cause  -> vote at a step's end (vote.py) -> all save the same step -> Preempted
                                 `-------- the budget is spent, or nothing would be lost --------> exit

Python signal handlers do not run while the main thread is in a collective, so a thread receives signals
(signal.set_wakeup_fd). Another thread enforces the budget: a rank that cannot agree in time, e.g. because a peer is
gone, exits without saving. Imports no torch: signals must be received while torch is imported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType

from contracts.errors import ErrorDocument, Preempted, ShardlineError
from trainer.supervise.account import Sections

# Sections in which a rank has no unsaved progress.
_NOTHING_TO_SAVE = ("set-up", "restore")


class StopCause(IntEnum):
    """Cause of a stop request; the highest of several is used."""

    NONE = 0
    SIGINT = 10
    SIGUSR1 = 11
    SIGTERM = 12
    NOTICE = 13

    @property
    def description(self) -> str:
        """Return the cause for messages."""
        if self is StopCause.NOTICE:
            return "the platform's notice that this machine is taken away"
        return self.name


_CAUSE_OF_SIGNAL = {
    signal.SIGTERM: StopCause.SIGTERM,
    signal.SIGUSR1: StopCause.SIGUSR1,
    signal.SIGINT: StopCause.SIGINT,
}


class StopRequest:
    """Stop request of this rank; ranks vote on it."""

    def __init__(self) -> None:
        self.cause = StopCause.NONE
        self._since = 0.0
        self._requested = threading.Event()

    def request(self, cause: StopCause) -> None:
        """Request a stop at the next vote; thread-safe."""
        self.cause = max(self.cause, cause)
        if not self._requested.is_set():
            self._since = time.monotonic()
            self._requested.set()

    def wait(self) -> float:
        """Wait for a request and return its time on the clock of time.monotonic."""
        self._requested.wait()
        return self._since


class RankExit:
    """Exits a rank early: records the error, kills loader processes, ends the process."""

    def __init__(self, record: Callable[[ErrorDocument], None]) -> None:
        self._record = record
        self._once = threading.Lock()

    def exit_now(self, error: ShardlineError) -> None:
        """End this process from any thread, even if the main thread is blocked."""
        if not self._once.acquire(blocking=False):
            # Another thread ends the process; block, so that nothing else is recorded.
            threading.Event().wait()
        try:
            self._record(ErrorDocument.of(error))
            end_loader_processes()
        finally:
            os._exit(error.exit_code)


def end_loader_processes() -> None:
    """Kill the loader processes of this rank.

    They ignore SIGTERM, and may never return from __getitem__.
    """
    with contextlib.suppress(ValueError):
        # DataLoader's handler would raise in the main thread. Only that thread can reset it (ValueError elsewhere).
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in multiprocessing.active_children():
        process.kill()


def ignore_stop_signals() -> None:
    """Ignore stop signals in a loader process: if it ended first, the rank could not save."""
    signal.set_wakeup_fd(-1)
    for number in _CAUSE_OF_SIGNAL:
        signal.signal(number, signal.SIG_IGN)


class SignalReceiver:
    """Receives stop signals in a thread; created early, in the main thread.

    A rank that is still running `budget_s` after a signal exits without an agreement.
    """

    def __init__(self, stop: StopRequest, sections: Sections, *, budget_s: float, rank_exit: RankExit) -> None:
        self._stop, self._sections, self._budget_s, self._rank_exit = stop, sections, budget_s, rank_exit
        self._closed = threading.Event()
        self._receiving, self._sending = socket.socketpair()
        self._sending.setblocking(False)
        # The interpreter writes the signal number to the socket; the handlers need not run.
        signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        for number in _CAUSE_OF_SIGNAL:
            signal.signal(number, _ignore)
        for target in (self._receive, self._keep_time):
            threading.Thread(target=target, name=f"stop: {target.__name__}", daemon=True).start()

    def close(self) -> None:
        """Ignore later signals: training is finished."""
        self._closed.set()

    def _receive(self) -> None:
        while True:
            for number in self._receiving.recv(64):
                if number in _CAUSE_OF_SIGNAL:
                    self._stop.request(_CAUSE_OF_SIGNAL[signal.Signals(number)])

    def _keep_time(self) -> None:
        deadline = self._stop.wait() + self._budget_s
        while not self._closed.is_set():
            cause, current = self._stop.cause.description, self._sections.now
            if current.section in _NOTHING_TO_SAVE:
                self._rank_exit.exit_now(
                    Preempted(f"told to stop by {cause} in section {current.section}, with nothing to save")
                )
            if (remaining := deadline - time.monotonic()) <= 0:
                self._rank_exit.exit_now(
                    Preempted(
                        f"told to stop by {cause}, and within {self._budget_s:g} s (resources.stop_budget_s) the ranks "
                        f"did not save: this one spent {current.lasted_s:.1f} s in section {current.section}; the "
                        "newest checkpoint stands"
                    )
                )
            self._closed.wait(min(remaining, 0.1))


def _ignore(number: int, frame: FrameType | None) -> None:
    """Signal handler; without one the signal would end the process."""
