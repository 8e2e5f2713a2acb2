"""A rank that is told to stop: who tells it, how long it may take, and how it leaves.

    signal, notice ─> StopRequest.wanted ─> vote at a step's end (vote.py) ─> all save the same step ─> Preempted
                                 └──────── the budget is spent, or nothing is lost ──> leave

A handler in Python does not run while the main thread sits in a collective, so a thread receives (SignalReceiver). It
also keeps the time: a rank that cannot agree within the budget, because a peer is gone or sleeps, leaves without; what
was saved last stands. Nothing here imports torch: a signal must be heard while torch is imported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import FrameType

from contracts.errors import EXIT_OK, EXIT_TRY_AGAIN, ErrorDocument, Preempted, ShardlineError, TryAgain
from trainer.supervise.sections import Sections

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
    def is_preemption(self) -> bool:
        """Whether it is another attempt's turn, rather than the end of training."""
        return self >= StopCause.SIGINT

    @property
    def words(self) -> str:
        """Say it."""
        return _WORDS[self]


_WORDS: Mapping[StopCause, str] = {
    StopCause.NONE: "nothing",
    StopCause.SIGINT: "SIGINT",
    StopCause.SIGUSR1: "SIGUSR1",
    StopCause.SIGTERM: "SIGTERM",
    StopCause.NOTICE: "the platform's notice that this machine is taken away",
}
_CAUSE_OF_SIGNAL = {
    signal.SIGTERM: StopCause.SIGTERM,
    signal.SIGUSR1: StopCause.SIGUSR1,
    signal.SIGINT: StopCause.SIGINT,
}


class StopRequest:
    """What this rank knows of a wish to stop; the ranks agree by voting on it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cause = StopCause.NONE
        self._since: float | None = None

    @property
    def wanted(self) -> StopCause:
        """Why this rank wants to stop."""
        return self._cause

    def want(self, cause: StopCause) -> None:
        """Ask for a stop at the next vote; any thread of any rank may."""
        with self._changed:
            self._cause = max(self._cause, cause)
            if cause.is_preemption and self._since is None:
                self._since = time.monotonic()
            self._changed.notify_all()

    def wait_for_preemption(self) -> float:
        """Wait until a preemption is wanted, and return since when, on the clock of time.monotonic."""
        with self._changed:
            while self._since is None:
                self._changed.wait()
            return self._since


class RankExit:
    """How a rank ends before its work is done: it says why, takes its loader processes along, and is gone.

    Args:
        say: Writes down why; the first word of a rank counts.
    """

    def __init__(self, say: Callable[[ErrorDocument], None]) -> None:
        self._say = say
        self._once = threading.Lock()

    def at_once(self, error: ShardlineError) -> None:
        """End this process from whatever thread, while its main thread may be stuck in a call that never returns."""
        if not self._once.acquire(blocking=False):
            # The other thread ends the process; this one must not say anything else meanwhile.
            threading.Event().wait()
        try:
            self._say(ErrorDocument.of(error))
            end_loader_processes()
        finally:
            os._exit(exit_code_for_torchrun(error))


def exit_code_for_torchrun(error: ShardlineError) -> int:
    """Return the exit code for torchrun: it would start a rank again that stopped as agreed, unless that says 0."""
    return EXIT_OK if isinstance(error, Preempted) else EXIT_TRY_AGAIN


def end_loader_processes() -> None:
    """Kill the loader processes of this rank.

    They ignore SIGTERM, so whoever waits for them waits until they come back from __getitem__, which may be never.
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
    """Receives the signals of this process in a thread; to be made in the main thread, before anything slow.

    Args:
        stop: Is told.
        sections: Of this rank.
        budget_s: Seconds from a signal to the end of this process.
        explain: Returns what to say when ranks could not agree: given why, and in how many seconds.
        rank_exit: Ends this process.
    """

    def __init__(
        self,
        stop: StopRequest,
        sections: Sections,
        *,
        budget_s: float,
        explain: Callable[[str], ShardlineError],
        rank_exit: RankExit,
    ) -> None:
        self._stop, self._sections, self._budget_s = stop, sections, budget_s
        self._explain, self._rank_exit = explain, rank_exit
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
        """Training is finished: a late signal changes nothing any more."""
        self._done.set()

    def _receive(self) -> None:
        while True:
            for number in self._receiving.recv(64):
                if number in _CAUSE_OF_SIGNAL:
                    self._stop.want(_CAUSE_OF_SIGNAL[signal.Signals(number)])

    def _keep_time(self) -> None:
        deadline = self._stop.wait_for_preemption() + self._budget_s
        while not self._done.is_set():
            cause = self._stop.wanted.words
            if (section := self._sections.now.section) in _NOTHING_TO_SAVE:
                self._rank_exit.at_once(
                    self._explain(f"told to stop by {cause} in section {section}, with nothing to save")
                )
            if (remaining := deadline - time.monotonic()) <= 0:
                now = self._sections.now
                self._rank_exit.at_once(
                    self._explain(
                        f"told to stop by {cause}, and within {self._budget_s:g} s (resources.stop_budget_s) the ranks "
                        f"did not save: for {now.lasted_s:.1f} s this one has been in section {now.section}; the "
                        "newest checkpoint stands"
                    )
                )
            self._done.wait(min(remaining, 0.1))


def explain_leaving(reason: str, crashed: Mapping[int, str]) -> ShardlineError:
    """Return what a rank says that leaves without an agreement.

    torchrun sends SIGTERM also to the peers of a rank that crashed: then nobody took the machine away.

    Args:
        reason: Why it leaves.
        crashed: Ranks of this machine that are gone without having left, and their last section.
    """
    if crashed:
        gone = ", ".join(f"rank {rank} (last in section {section})" for rank, section in sorted(crashed.items()))
        return TryAgain(f"{gone} is gone; {reason}")
    return Preempted(reason)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Be a handler: without one a signal would end the process, and nothing would be written to the socket."""
