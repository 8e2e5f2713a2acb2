"""Supervision of a rank process: stop signals, watchdog and time account. Imports no torch.

See docs/preemption.md and docs/goodput.md.
"""

from __future__ import annotations

import faulthandler
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from contracts.config import ResourcesSection
from contracts.errors import ErrorDocument, Preempted, ShardlineError, TryAgain
from contracts.events import EventLog, print_error
from trainer.supervise.account import Account, CurrentSection
from trainer.supervise.notice import NoticeWatch, metadata_host
from trainer.supervise.stop import StopCause, StopRequest, end_loader_processes, receive_stop_signals

_CHECK_INTERVAL_S = 0.25
# Sections in which a rank has no unsaved progress.
_NOTHING_TO_SAVE = ("set-up", "restore")
# The watchdog, which reports the section, fires before the time-out of a collective.
_SLACK_S = 30.0


class Hung(TryAgain):
    """A section of a rank took longer than its limit."""


def longest_wait_s(resources: ResourcesSection) -> float:
    """Return the time-out of a collective: longer than any section of a peer may take."""
    return max(resources.setup_timeout_s, resources.hang_timeout_s) + _SLACK_S


class RankSupervisor:
    """Supervises a rank process; created in its main thread before torch is imported.

    A thread ends the rank if a section takes too long, or if it still runs `stop_budget_s` after a stop request: it
    cannot agree in time, e.g. because a peer is gone. Limits of sections are setup_timeout_s up to the end of the first
    step, which may compile, then hang_timeout_s.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        events: EventLog,
        *,
        rank: int,
        local_rank: int,
        record: Callable[[ErrorDocument], None],
    ) -> None:
        assert events.folder is not None
        self.account = Account(events, is_first=rank == 0)
        self.stop = StopRequest()
        self._resources, self._events, self._rank, self._record = resources, events, rank, record
        self._is_finished = False
        self._closed = threading.Event()
        self._stacks = (events.folder / f"{rank}.stacks.txt").open("ab", buffering=0)
        receive_stop_signals(self.stop)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        self._notice = None
        if local_rank == 0 and (host := metadata_host()) is not None:
            self._notice = NoticeWatch(
                host, lambda: self.stop.request(StopCause.NOTICE), lambda message: events.emit("log", message=message)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching and end loader processes."""
        self.account.emit_time()
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
        if self._notice is not None:
            self._notice.close()
        end_loader_processes()

    def record(self, document: ErrorDocument) -> None:
        """Record why this rank ends; print it if it cannot be written."""
        try:
            self._record(document)
        except (OSError, ShardlineError) as error:
            print_error(f"{document.message}\n({error})")

    def finished(self) -> None:
        """Ignore later signals: training is finished."""
        self._is_finished = True

    def explain(self, error: Exception) -> Exception:
        """Return the error to record; failures of collectives are attributed to another rank."""
        peer_lost = is_peer_loss(error)
        if isinstance(error, TryAgain) or (isinstance(error, ShardlineError) and not peer_lost):
            return error
        message = f"{type(error).__name__}: {error}"
        if peer_lost and self.stop.cause:
            return Preempted(
                f"told to stop by {self.stop.cause.description}, and a peer left before all agreed: {message}"
            )
        return TryAgain(f"another rank is gone or does not answer: {message}") if peer_lost else error

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        # faulthandler's C thread is the fallback if the GIL is never released.
        longest_s = longest_wait_s(self._resources)
        interval_s = min(_CHECK_INTERVAL_S, self._resources.hang_timeout_s / 4)
        while True:
            faulthandler.dump_traceback_later(longest_s, exit=True, file=self._stacks)
            current, wait_s = self.account.sections.now, interval_s
            if self.stop.cause and not self._is_finished:
                # All ranks end at the same moment: a later one would report the loss of an earlier one instead.
                wait_s = min(interval_s, self._enforce_stop(current))
            if current.lasted_s > (limit_s := self._limit_s(current)):
                self._report_hang(current, limit_s)
            if self._closed.wait(wait_s):
                return

    def _enforce_stop(self, current: CurrentSection) -> float:
        """Exit if nothing would be lost or the budget is spent; return what is left of it in seconds."""
        cause, budget_s = self.stop.cause.description, self._resources.stop_budget_s
        if current.section in _NOTHING_TO_SAVE:
            self._exit(Preempted(f"told to stop by {cause} in section {current.section}, with nothing to save"))
        if (remaining_s := self.stop.since + budget_s - time.monotonic()) <= 0:
            self._exit(
                Preempted(
                    f"told to stop by {cause}, and within {budget_s:g} s (resources.stop_budget_s) the ranks did not "
                    f"save: this one spent {current.lasted_s:.1f} s in section {current.section}; the newest "
                    "checkpoint stands"
                )
            )
        return remaining_s

    def _limit_s(self, current: CurrentSection) -> float:
        setup_s, hang_s = self._resources.setup_timeout_s, self._resources.hang_timeout_s
        if current.section == "set-up":
            return setup_s
        is_first_step = current.section == "step" and self.account.sections.steps == 0
        return max(setup_s, hang_s) if is_first_step else hang_s

    def _report_hang(self, current: CurrentSection, limit_s: float) -> None:
        error = Hung(
            f"rank {self._rank} was in section {current.section} for {current.lasted_s:.1f} s (limit {limit_s:g} s) "
            f"at step {current.step}"
        )
        with suppress(OSError):
            self._stacks.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {error}\n".encode())
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._events.emit("hang", rank=self._rank, section=current.section, step=current.step, message=str(error))
        self._exit(error)

    def _exit(self, error: ShardlineError) -> NoReturn:
        """End this process, even if its main thread is blocked."""
        try:
            self.record(ErrorDocument.of(error))
            end_loader_processes()
        finally:
            os._exit(error.exit_code)


# gloo's errors are RuntimeErrors that start with a source location.
_GLOO = re.compile(r"\bgloo/\S+\.cc:\d+\]")


def is_peer_loss(error: BaseException) -> bool:
    """Return whether an error, or one that it wraps, means that another rank or the store is unreachable.

    NCCL and the store raise torch.distributed.DistError, matched by name. The error may be wrapped, e.g. by
    torch.compile, whose first call communicates.
    """
    pending: list[BaseException | None] = [error]
    visited: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        if any(kind.__name__ == "DistError" for kind in type(current).__mro__) or _GLOO.search(str(current)):
            return True
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
    return False
