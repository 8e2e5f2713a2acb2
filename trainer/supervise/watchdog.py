"""Finds what hangs: a thread of each rank that leaves a sign of life, and ends the rank when a section takes too long.

In the attempt's folder:

    heartbeat-RANK.json    the rank's section, step and pid, each second
    RANK.stacks.txt        the stacks of all threads of a rank whose section took too long

A rank that is stopped (SIGSTOP) can do nothing; its peers then sit in a collective for too long, and say who is silent
and what it did last. Nothing here imports torch.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.config import ResourcesSection
from contracts.errors import ShardlineError, TryAgain
from contracts.events import EventLog, print_error
from trainer.supervise.sections import CurrentSection, Sections
from trainer.supervise.signals import RankExit

BEAT_S = 1.0
# A rank that said nothing for so long is silent: its beats come each second, on a machine that may be overloaded.
SILENT_S = 3.0
LEFT = "left"
_BEAT_BYTES = 512


class Hung(TryAgain):
    """A section of a rank took longer than its limit."""


class Heartbeat(BaseModel):
    """A rank's sign of life."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    generation: int
    """Restarts of the ranks within the attempt; those of earlier ones say nothing about now."""
    pid: int
    section: str
    """`left`: it has said why it ends."""
    section_s: float
    """Seconds in it so far."""
    step: int
    time: float
    """When this was written, in seconds since the epoch."""

    @property
    def silent_s(self) -> float:
        """Seconds since it was written."""
        return time.time() - self.time

    @property
    def crashed(self) -> bool:
        """Whether the process is gone without having said why."""
        return self.section != LEFT and not _is_alive(self.pid)


class Heartbeats:
    """The signs of life of the ranks of one machine."""

    def __init__(self, folder: Path, *, rank: int, generation: int) -> None:
        self._folder, self._rank, self._generation = folder, rank, generation
        self._has_failed = False

    def write(self, section: str, section_s: float, step: int) -> bool:
        """Leave this rank's own; return whether it could be written: a full disk is said once, on stderr."""
        beat = Heartbeat(
            rank=self._rank,
            generation=self._generation,
            pid=os.getpid(),
            section=section,
            section_s=round(section_s, 3),
            step=step,
            time=time.time(),
        )
        try:
            # In place, always of one length: it needs no room on the disk but for the first time. A reader that meets
            # a half-written one passes over it.
            descriptor = os.open(self._folder / f"heartbeat-{self._rank}.json", os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, beat.model_dump_json().encode().ljust(_BEAT_BYTES), 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                print_error(f"warning: the heartbeat of rank {self._rank} could not be written: {error}")
            return False
        return True

    def peers(self) -> list[Heartbeat]:
        """Return those of the other ranks of this generation, by rank."""
        found = []
        for path in self._folder.glob("heartbeat-*.json"):
            try:
                beat = Heartbeat.model_validate_json(path.read_bytes())
            except (ValidationError, FileNotFoundError):
                continue
            if beat.rank != self._rank and beat.generation == self._generation:
                found.append(beat)
        return sorted(found, key=lambda beat: beat.rank)

    def crashed(self) -> dict[int, str]:
        """Return the last section of each peer that is gone without a word."""
        return {beat.rank: beat.section for beat in self.peers() if beat.crashed}


def section_limits(resources: ResourcesSection) -> dict[str, float]:
    """Return the longest that a rank may be in each section, in seconds."""
    return {
        "set-up": resources.setup_timeout_s,
        **dict.fromkeys(("restore", "data", "step", "checkpoint", "evaluation", "stop"), resources.hang_timeout_s),
    }


def longest_wait_s(resources: ResourcesSection) -> float:
    """Return how long a rank may wait for its peers: as long as any of them may be at something, and a little more.

    The little more lets the watchdog, which can say where everybody is, be the first to end a rank.
    """
    return max(section_limits(resources).values()) + SILENT_S * 10


class Watchdog:
    """Watches the sections of this rank from a thread of its own.

    Args:
        sections: Of this rank.
        limits: The longest for each section, in seconds.
        first_step_s: The longest for the first step, which may compile.
        events: Told what hung.
        heartbeats: Of this machine.
        rank: This one.
        rank_exit: Ends this process.
    """

    def __init__(
        self,
        sections: Sections,
        *,
        limits: Mapping[str, float],
        first_step_s: float,
        events: EventLog,
        heartbeats: Heartbeats,
        rank: int,
        rank_exit: RankExit,
    ) -> None:
        assert events.folder is not None
        self._sections, self._limits, self._first_step_s = sections, limits, first_step_s
        self._events, self._heartbeats, self._rank, self._rank_exit = events, heartbeats, rank, rank_exit
        self._done = threading.Event()
        self._stacks = (events.folder / f"{rank}.stacks.txt").open("ab", buffering=0)
        self._looked_at = time.monotonic()
        self._seen: dict[int, tuple[float, float]] = {}
        """By peer: when its newest beat was written, and when it was first seen here."""
        # At once: a rank that crashes in its first moments is to be seen.
        self._heartbeats.write("set-up", 0.0, 0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._done.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        # Should the interpreter's lock never be given up, this thread would wait too: then only a thread in C is left.
        longest = max(self._first_step_s, *self._limits.values()) + SILENT_S
        interval = min(BEAT_S, *(limit / 4 for limit in self._limits.values()))
        while True:
            faulthandler.dump_traceback_later(longest, exit=True, file=self._stacks)
            now = self._sections.now
            written = self._heartbeats.write(now.section, now.lasted_s, now.step)
            peers = self._heartbeats.peers()
            # Where this rank's beats cannot be written, its peers' cannot either: their silence says nothing.
            is_over = now.lasted_s > self._limit(now) and not self._waits_for_one(peers)
            if self._one_is_stopped(peers, can_judge=written) or is_over:
                self._end(now, peers)
            if self._done.wait(interval):
                return

    def _limit(self, now: CurrentSection) -> float:
        if now.section == "step" and self._sections.steps == 0:
            return max(self._first_step_s, self._limits["step"])
        return self._limits[now.section]

    def _one_is_stopped(self, peers: list[Heartbeat], *, can_judge: bool) -> bool:
        """Whether a peer is there and silent for longer than its section may take: its own watchdog cannot say so.

        This rank, waiting for it, may be in a section with a longer limit.
        """
        now = time.monotonic()
        # Whoever was frozen itself (all of a machine may be) looks again before it judges.
        was_frozen, self._looked_at = now - self._looked_at > SILENT_S or not can_judge, now
        stopped = False
        for beat in peers:
            written, seen_at = self._seen.get(beat.rank, (0.0, now))
            if beat.time != written or was_frozen:
                self._seen[beat.rank] = (beat.time, now)
            elif beat.section in self._limits and now - seen_at + beat.section_s > self._limits[beat.section]:
                stopped = stopped or (now - seen_at > SILENT_S and not beat.crashed)
        return stopped

    def _waits_for_one(self, peers: list[Heartbeat]) -> bool:
        """Whether a peer is at something that may take longer than this rank's own: its watchdog looks after it."""
        now = self._sections.now
        return any(
            beat.section in self._limits
            and beat.silent_s <= SILENT_S
            and beat.section_s <= self._limits[beat.section]
            and now.lasted_s <= self._limits[beat.section]
            for beat in peers
        )

    def _end(self, now: CurrentSection, peers: list[Heartbeat]) -> None:
        error = describe_hang(self._rank, now, self._limit(now), peers)
        with suppress(OSError):
            self._stacks.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {error}\n".encode())
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._events.emit("hang", rank=self._rank, section=now.section, step=now.step, message=str(error))
        self._rank_exit.at_once(error)


def describe_hang(rank: int, now: CurrentSection, limit_s: float, peers: list[Heartbeat]) -> ShardlineError:
    """Say what hung, and which peers of this machine are silent."""
    said = f"rank {rank} was in section {now.section} for {now.lasted_s:.1f} s (limit {limit_s:g} s) at step {now.step}"
    for beat in peers:
        if beat.silent_s > SILENT_S:
            said += f"; rank {beat.rank} has been silent for {beat.silent_s:.1f} s, last in section {beat.section}"
        else:
            said += f"; rank {beat.rank} is in section {beat.section} for {beat.section_s:.1f} s"
    return Hung(said)


def _is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        pass
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
