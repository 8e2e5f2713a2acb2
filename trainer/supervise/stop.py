"""Stop requests of a rank, by signal or notice.

    signal, notice -> StopRequest.cause  -> vote at a step's end (vote.py) -> all save the same step -> Preempted
                                 `-------- the budget is spent, or nothing would be lost --------> exit (supervisor.py)

Python signal handlers do not run while the main thread is in a collective, so a thread receives signals
(signal.set_wakeup_fd). Imports no torch: signals must be received while torch is imported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import socket
import threading
import time
from enum import IntEnum
from types import FrameType


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
        self.since = 0.0
        """Time of the first request, on the clock of time.monotonic."""

    def request(self, cause: StopCause) -> None:
        """Request a stop at the next vote; thread-safe."""
        self.since = self.since or time.monotonic()
        self.cause = max(self.cause, cause)


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


def receive_stop_signals(stop: StopRequest) -> None:
    """Turn stop signals into requests, in a thread; called early, in the main thread."""
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    # The interpreter writes the signal number to the socket; the handlers need not run.
    signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    for number in _CAUSE_OF_SIGNAL:
        signal.signal(number, _ignore)

    def receive() -> None:
        # The thread keeps both ends open.
        while sending.fileno() >= 0:
            for number in receiving.recv(64):
                if number in _CAUSE_OF_SIGNAL:
                    stop.request(_CAUSE_OF_SIGNAL[signal.Signals(number)])

    threading.Thread(target=receive, name="stop signals", daemon=True).start()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Signal handler; without one the signal would end the process."""
