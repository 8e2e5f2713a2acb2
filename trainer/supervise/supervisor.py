"""What surrounds the training of a rank from its first line to its last: signals, the watchdog, the account of time.

See docs/preemption.md and docs/goodput.md. Nothing here imports torch.
"""

from __future__ import annotations

import faulthandler
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from contracts.config import ResourcesSection
from contracts.errors import ErrorDocument, Preempted, ShardlineError, TryAgain
from contracts.events import EventLog, print_error
from trainer.supervise.account import Account, CurrentSection, Sections
from trainer.supervise.notice import NoticeWatch, metadata_host
from trainer.supervise.stop import RankExit, SignalReceiver, StopCause, StopRequest, end_loader_processes

_LOOK_EVERY_S = 1.0
# The watchdog, which names the section, comes before the time-out of a collective.
_SLACK_S = 30.0


class Hung(TryAgain):
    """A section of a rank took longer than its limit."""


def longest_wait_s(resources: ResourcesSection) -> float:
    """Return the time-out of a collective: a rank waits for as long as a peer may be at something."""
    return max(resources.setup_timeout_s, resources.hang_timeout_s) + _SLACK_S


class Watchdog:
    """Watches the sections of this rank from a thread of its own.

    Limits are setup_timeout_s up to the end of the first step, which may compile, then hang_timeout_s.
    """

    def __init__(
        self, sections: Sections, resources: ResourcesSection, events: EventLog, rank: int, rank_exit: RankExit
    ) -> None:
        assert events.folder is not None
        self._sections, self._resources, self._events = sections, resources, events
        self._rank, self._rank_exit = rank, rank_exit
        self._done = threading.Event()
        self._stacks = (events.folder / f"{rank}.stacks.txt").open("ab", buffering=0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._done.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()

    def _watch(self) -> None:
        # If the interpreter's lock is never released, this thread waits too: then only faulthandler's, in C, is left.
        longest_s = longest_wait_s(self._resources)
        interval_s = min(_LOOK_EVERY_S, self._resources.hang_timeout_s / 4)
        while True:
            faulthandler.dump_traceback_later(longest_s, exit=True, file=self._stacks)
            now = self._sections.now
            if now.lasted_s > (limit_s := self._limit_s(now)):
                self._end(now, limit_s)
            if self._done.wait(interval_s):
                return

    def _limit_s(self, now: CurrentSection) -> float:
        setup_s, hang_s = self._resources.setup_timeout_s, self._resources.hang_timeout_s
        if now.section == "set-up":
            return setup_s
        is_first_step = now.section == "step" and self._sections.steps == 0
        return max(setup_s, hang_s) if is_first_step else hang_s

    def _end(self, now: CurrentSection, limit_s: float) -> None:
        error = Hung(
            f"rank {self._rank} was in section {now.section} for {now.lasted_s:.1f} s (limit {limit_s:g} s) "
            f"at step {now.step}"
        )
        with suppress(OSError):
            self._stacks.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {error}\n".encode())
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._events.emit("hang", rank=self._rank, section=now.section, step=now.step, message=str(error))
        self._rank_exit.exit_now(error)


class RankSupervisor:
    """The supervision of a rank's process; made in its main thread before torch is imported, and left when it ends."""

    def __init__(
        self,
        resources: ResourcesSection,
        events: EventLog,
        *,
        rank: int,
        local_rank: int,
        record: Callable[[ErrorDocument], None],
    ) -> None:
        self.account = Account(events, is_first=rank == 0)
        self.stop = StopRequest()
        self._record = record
        rank_exit = RankExit(self.record)
        sections = self.account.sections
        self._receiver = SignalReceiver(self.stop, sections, budget_s=resources.stop_budget_s, rank_exit=rank_exit)
        self._watchdog = Watchdog(sections, resources, events, rank, rank_exit)
        self._notice = None
        if local_rank == 0 and (host := metadata_host()) is not None:
            self._notice = NoticeWatch(
                host, lambda: self.stop.want(StopCause.NOTICE), lambda message: events.emit("log", message=message)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no longer, and leave no loader process behind."""
        self.account.tell()
        self._watchdog.close()
        if self._notice is not None:
            self._notice.close()
        end_loader_processes()

    def record(self, document: ErrorDocument) -> None:
        """Record why this rank ends; print it where the disk is full."""
        try:
            self._record(document)
        except (OSError, ShardlineError) as error:
            print_error(f"{document.message}\n({error})")

    def finished(self) -> None:
        """Let a later signal change nothing: training is finished."""
        self._receiver.close()

    def explain(self, error: Exception) -> Exception:
        """Return the error to record: a collective that fails has its cause in another rank."""
        lost = is_peer_loss(error)
        if isinstance(error, TryAgain) or (isinstance(error, ShardlineError) and not lost):
            return error
        told = f"{type(error).__name__}: {error}"
        if lost and self.stop.wanted:
            return Preempted(f"told to stop by {self.stop.wanted.words}, and a peer left before all agreed: {told}")
        return TryAgain(f"another rank is gone or does not answer: {told}") if lost else error


# gloo's errors are RuntimeErrors that begin with the place in its source: a peer closed the connection, or is too slow.
_GLOO = re.compile(r"\bgloo/\S+\.cc:\d+\]")


def is_peer_loss(error: BaseException) -> bool:
    """Return whether an error, or one that it wraps, says that another rank or the store is gone or does not answer.

    NCCL's and the store's are torch.distributed.DistError, known by name. A loss can arrive as anything, such as a
    failure of torch.compile, whose first call talks to the other ranks.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if any(kind.__name__ == "DistError" for kind in type(current).__mro__) or _GLOO.search(str(current)):
            return True
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
    return False
