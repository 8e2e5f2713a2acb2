"""The market that spot machines come from: which are taken away, and when there are none.

Preemptions are decided before a job starts, from a seed; when each happens is read from the job's own training events,
so that a slow machine loses the same step as a fast one. What is counted is what really hit a running machine.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["sigterm", "sigkill"]
# Of a training's steps: a preemption before the first or after the last one would prove nothing.
_EARLIEST, _LATEST = 0.2, 0.8


@dataclass(frozen=True)
class Preemption:
    """One machine to be taken away."""

    node: int
    """0 is the machine of the first pool, the others follow."""
    kind: Kind
    """With a signal and the time to react, or at once. Whether Vertex passes a notice on is not documented."""
    at_fraction: float
    """Once training has taken this part of its steps."""
    job: str = ""
    """Only jobs whose display name holds this text."""

    def is_due(self, step: int, total: int) -> bool:
        """Whether it is time; `step` and `total` are 0 as long as nothing is known of them."""
        return total > 0 and max(1, self.at_fraction * total) <= step < total


@dataclass(frozen=True)
class Preempted:
    """A machine that was taken away while it ran."""

    job: str
    """Resource name of the custom job."""
    display_name: str
    node: int
    kind: Kind
    step: int
    """The last step that training had reported; 0: none."""
    attempt: int
    """How often the job's machines had been started before."""
    time: float
    """In seconds since the epoch, of the rehearsed world."""
    exit_code: int | None = None
    """Of its container; negative for a signal. One that ended before its time was over is judged by it."""
    escalated: bool = False
    """It was given notice, had not ended when its time was over, and was killed."""


class Progress(Protocol):
    """How far a training is."""

    step: int
    """The last that was reported; 0: none."""
    total: int
    """Steps of the training; 0: not known yet."""

    def look(self) -> None:
        """Read what is new."""


class NoProgress:
    """Of a program whose steps nobody can read: it is never preempted."""

    step = total = 0

    def __init__(self, folder: Path) -> None:
        """Take the folder, in which nothing is looked for."""

    def look(self) -> None:
        """Read nothing."""


class Market:
    """Preemptions of a rehearsal's custom jobs, and regions in which they find no machines.

    Args:
        preemptions: Machines to take away, in this order; only of jobs with strategy SPOT.
        stockouts: Regions without machines: a job there fails, as after the service's own attempts (how long those
            take is not known).
        watch: Reads how far a training is below its first machine's TMPDIR; preemptions need it.
    """

    def __init__(
        self,
        *,
        preemptions: Iterable[Preemption] = (),
        stockouts: Iterable[str] = (),
        watch: Callable[[Path], Progress] = NoProgress,
    ) -> None:
        self._wanted = list(preemptions)
        self._stockouts = set(stockouts)
        self.watch = watch
        self._lock = threading.Lock()
        self.preempted: list[Preempted] = []
        """Those that happened."""
        self.without_machines: dict[str, list[str]] = {}
        """Display names of jobs that found no machines, by region."""

    @property
    def missing(self) -> int:
        """How many of the preemptions asked for have not happened."""
        with self._lock:
            return len(self._wanted)

    def has_machines(self, region: str, job: str) -> bool:
        """Whether a new job, of this display name, finds machines in a region; one that does not is recorded."""
        with self._lock:
            if region not in self._stockouts:
                return True
            self.without_machines.setdefault(region, []).append(job)
            return False

    def calm(self) -> None:
        """Let every job find machines, from now on."""
        with self._lock:
            self._stockouts.clear()

    def due(self, display_name: str, nodes: int, step: int, total: int) -> Preemption | None:
        """Return the next preemption where its time has come for a job.

        Args:
            display_name: Of the job.
            nodes: Its machines.
            step: The last step that training has reported.
            total: Number of its steps.
        """
        with self._lock:
            first = next((one for one in self._wanted if one.job in display_name and one.node < nodes), None)
            return first if first is not None and first.is_due(step, total) else None

    def note(self, preemption: Preemption, happened: Preempted) -> None:
        """Keep what happened."""
        with self._lock:
            self._wanted.remove(preemption)
            self.preempted.append(happened)


def spread(count: int, *, seed: int, nodes: int, job: str = "") -> tuple[Preemption, ...]:
    """Return preemptions over a training's steps: of both kinds in turn, the first of node 0, each later than the last.

    Args:
        count: Number of them.
        seed: Decides nodes, moments and the first kind.
        nodes: Machines of the training.
        job: Text that the display name of the training's custom job holds.
    """
    draw = random.Random(seed)
    kinds: Sequence[Kind] = ("sigterm", "sigkill") if draw.random() < 0.5 else ("sigkill", "sigterm")
    width = (_LATEST - _EARLIEST) / max(1, count)
    return tuple(
        Preemption(
            node=0 if number == 0 else draw.randrange(nodes),
            kind=kinds[number % 2],
            at_fraction=_EARLIEST + width * (number + draw.random() / 2),
            job=job,
        )
        for number in range(count)
    )
