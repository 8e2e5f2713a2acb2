"""Finds what hangs: a thread of each rank that ends the rank when a section takes longer than its limit.

Before that it writes the stacks of all threads to `RANK.stacks.txt` in the attempt's folder. A rank that is stopped
(SIGSTOP) can do nothing; its peers wait in a collective until their own limit, and the launcher kills it then.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from contextlib import suppress

from contracts.config import ResourcesSection
from contracts.errors import TryAgain
from contracts.events import EventLog
from trainer.supervise.account import CurrentSection, Sections
from trainer.supervise.stop import RankExit

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
