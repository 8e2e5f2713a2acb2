"""A rank that is told to stop: by what, how long it may take, and how it ends.

    signal, notice -> StopRequest.wanted -> vote at a step's end (vote.py) -> all save the same step -> Preempted
                                 `-------- the budget is spent, or nothing would be lost --------> exit

A Python signal handler does not run while the main thread sits in a collective, so a thread receives
(signal.set_wakeup_fd). It also keeps the time: a rank that cannot agree within the budget, because a peer is gone or
sleeps, ends without; the newest checkpoint stands. Nothing here imports torch: a signal must be received while torch is
imported.
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

# In these sections a rank holds nothing that could be saved.
_NOTHING_TO_SAVE = ("set-up", "restore")


class StopCause(IntEnum):
    """Why training should stop now; of several causes the highest counts."""

    NONE = 0
    SIGINT = 10
    SIGUSR1 = 11
    SIGTERM = 12
    NOTICE = 13

    @property
    def words(self) -> str:
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
    """What this rank knows of a wish to stop; the ranks agree by voting on it."""

    def __init__(self) -> None:
        self.wanted = StopCause.NONE
        self._since = 0.0
        self._requested = threading.Event()

    def want(self, cause: StopCause) -> None:
        """Ask for a stop at the next vote; from any thread of any rank."""
        self.wanted = max(self.wanted, cause)
        if not self._requested.is_set():
            self._since = time.monotonic()
            self._requested.set()

    def wait(self) -> float:
        """Wait until a stop is wanted, and return since when, on the clock of time.monotonic."""
        self._requested.wait()
        return self._since


class RankExit:
    """The end of a rank before its work is done: recorded, loader processes killed, process ended."""

    def __init__(self, record: Callable[[ErrorDocument], None]) -> None:
        self._record = record
        self._once = threading.Lock()

    def exit_now(self, error: ShardlineError) -> None:
        """End this process from any thread, while its main thread may be stuck in a call that never returns."""
        if not self._once.acquire(blocking=False):
            # The other thread ends the process; this one must not record anything else meanwhile.
            threading.Event().wait()
        try:
            self._record(ErrorDocument.of(error))
            end_loader_processes()
        finally:
            os._exit(error.exit_code)


def end_loader_processes() -> None:
    """Kill the loader processes of this rank.

    They ignore SIGTERM, so waiting for them would wait until they come back from __getitem__, which may be never.
    """
    with contextlib.suppress(ValueError):
        # DataLoader's handler would raise that a worker died; only the main thread has handlers, and it may be stuck.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in multiprocessing.active_children():
        process.kill()


def ignore_stop_signals() -> None:
    """Leave stopping to the rank: a loader process that ended by itself would fail the rank before it has saved."""
    signal.set_wakeup_fd(-1)
    for number in _CAUSE_OF_SIGNAL:
        signal.signal(number, signal.SIG_IGN)


class SignalReceiver:
    """Receives the signals of this process in a thread; made in the main thread, before anything slow.

    A rank that has not ended `budget_s` after a signal ends without the others' agreement.
    """

    def __init__(self, stop: StopRequest, sections: Sections, *, budget_s: float, rank_exit: RankExit) -> None:
        self._stop, self._sections, self._budget_s, self._rank_exit = stop, sections, budget_s, rank_exit
        self._done = threading.Event()
        self._receiving, self._sending = socket.socketpair()
        self._sending.setblocking(False)
        # The interpreter writes the number where the signal arrives; the handlers need never run.
        signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        for number in _CAUSE_OF_SIGNAL:
            signal.signal(number, _ignore)
        for target in (self._receive, self._keep_time):
            threading.Thread(target=target, name=f"stop: {target.__name__}", daemon=True).start()

    def close(self) -> None:
        """Let a later signal change nothing: training is finished."""
        self._done.set()

    def _receive(self) -> None:
        while True:
            for number in self._receiving.recv(64):
                if number in _CAUSE_OF_SIGNAL:
                    self._stop.want(_CAUSE_OF_SIGNAL[signal.Signals(number)])

    def _keep_time(self) -> None:
        deadline = self._stop.wait() + self._budget_s
        while not self._done.is_set():
            cause, now = self._stop.wanted.words, self._sections.now
            if now.section in _NOTHING_TO_SAVE:
                self._rank_exit.exit_now(
                    Preempted(f"told to stop by {cause} in section {now.section}, with nothing to save")
                )
            if (remaining := deadline - time.monotonic()) <= 0:
                self._rank_exit.exit_now(
                    Preempted(
                        f"told to stop by {cause}, and within {self._budget_s:g} s (resources.stop_budget_s) the ranks "
                        f"did not save: this one has been in section {now.section} for {now.lasted_s:.1f} s; the "
                        "newest checkpoint stands"
                    )
                )
            self._done.wait(min(remaining, 0.1))


def _ignore(number: int, frame: FrameType | None) -> None:
    """Be a handler: without one a signal would end the process, and nothing would be written to the socket."""
