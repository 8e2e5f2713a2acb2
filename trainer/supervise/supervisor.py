"""What surrounds the training of a rank, from the first line of its process to the last.

It is watched, it can be told to stop, and the first rank tells where time goes: docs/preemption.md, docs/goodput.md.

    sections     what the rank is doing now
    watchdog     ends it when a section takes too long
    signals      receives signals and keeps the time that is left
    notice       hears from the platform that the machine goes away
    ledger       tells where its time goes
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.config import ResourcesSection
from contracts.errors import ErrorDocument, ShardlineError, TryAgain
from contracts.events import EventLog, print_error
from trainer.supervise.ledger import Ledger
from trainer.supervise.notice import NoticeWatch, metadata_host
from trainer.supervise.signals import (
    RankExit,
    SignalReceiver,
    StopCause,
    StopRequest,
    end_loader_processes,
    explain_leaving,
)
from trainer.supervise.watchdog import LEFT, Heartbeats, Watchdog, section_limits


class RankSupervisor:
    """The life of a rank's process; made in its main thread before torch is imported, and left when it ends.

    Args:
        resources: Time limits.
        events: Of the attempt; must have a folder.
        rank: Among all.
        local_rank: Among those of this machine.
        generation: Of the ranks within the attempt.
        say: Writes down why this rank ended.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        events: EventLog,
        *,
        rank: int,
        local_rank: int,
        generation: int,
        say: Callable[[ErrorDocument], None],
    ) -> None:
        assert events.folder is not None
        self.ledger = Ledger(events, generation=generation, is_first=rank == 0)
        self.stop = StopRequest()
        self._events, self._say = events, say
        self._heartbeats = Heartbeats(Path(events.folder), rank=rank, generation=generation)
        rank_exit = RankExit(self.say)
        self._receiver = SignalReceiver(
            self.stop,
            self.ledger.sections,
            budget_s=resources.stop_budget_s,
            explain=self._explain,
            rank_exit=rank_exit,
        )
        limits = section_limits(resources)
        self._watchdog = Watchdog(
            self.ledger.sections,
            limits=limits,
            first_step_s=max(limits["step"], limits["set-up"]),
            events=events,
            heartbeats=self._heartbeats,
            rank=rank,
            rank_exit=rank_exit,
        )
        host = metadata_host()
        self._notice = None
        if host is not None and local_rank == 0:
            self._notice = NoticeWatch(host, lambda: self.stop.want(StopCause.NOTICE), self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no longer, and leave no loader process behind."""
        self.ledger.tell()
        self._watchdog.close()
        self._leave_last_beat()
        if self._notice is not None:
            self._notice.close()
        end_loader_processes()

    def say(self, document: ErrorDocument) -> None:
        """Write down why this rank ends; print it where it cannot be written: the disk is full."""
        try:
            self._say(document)
        except (OSError, ShardlineError) as error:
            print_error(f"{document.message}\n({error})")
        self._leave_last_beat()

    def finished(self) -> None:
        """Say that training is finished: a signal that comes now changes nothing."""
        self._receiver.close()

    def why(self, error: Exception) -> Exception:
        """Return what to say of an error: that a call to the other ranks fails has its reason with one of them."""
        lost = is_peer_loss(error)
        if isinstance(error, TryAgain) or (isinstance(error, ShardlineError) and not lost):
            return error
        said = f"{type(error).__name__}: {error}"
        if self.stop.wanted.is_preemption:
            return self._explain(f"told to stop by {self.stop.wanted.words}, and a peer left before all agreed: {said}")
        if self._heartbeats.crashed():
            return self._explain(said)
        return TryAgain(f"another rank is gone or does not answer: {said}") if lost else error

    def _leave_last_beat(self) -> None:
        now = self.ledger.sections.now
        self._heartbeats.write(LEFT, now.lasted_s, now.step)

    def _explain(self, reason: str) -> ShardlineError:
        return explain_leaving(reason, self._heartbeats.crashed())

    def _log(self, message: str) -> None:
        self._events.emit("log", message=message)


# What gloo raises, a RuntimeError, begins with the place in its source: a connection that a peer closed, or a wait for
# a peer that took too long.
_GLOO = re.compile(r"\bgloo/\S+\.cc:\d+\]")


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error, or one that it wraps, says that another rank or the ranks' store is gone or does not answer.

    NCCL's and the store's are torch.distributed.DistError, known by name: nothing here imports torch. A loss can arrive
    as anything, such as a failure of torch.compile, whose first call talks to the other ranks.
    """
    seen: list[BaseException] = []
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        if any(kind.__name__ == "DistError" for kind in type(one).__mro__) or _GLOO.search(str(one)):
            return True
        found += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return False
