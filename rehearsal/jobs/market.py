"""The market of spot machines: which are taken away, and regions without machines.

Preemptions are decided before a job starts, from a seed; when each happens is read from the job's own training events,
so that a slow machine loses the same step as a fast one. Recorded is what really happened to a running machine.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
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
    """With a signal and the time to react, or at once. Whether Vertex AI passes a notice on is not documented."""
    at_fraction: float
    """Once training has done this part of its steps."""
    job: str = ""
    """Only jobs whose display name holds this text."""


@dataclass(frozen=True)
class Preempted:
    """A machine that was taken away while it ran."""

    display_name: str
    """Of the custom job."""
    node: int
    kind: Kind
    step: int
    """The last step that training had reported; 0: none."""
    exit_code: int | None = None
    """Of its container; negative for a signal. One that ended before its time was over is judged by it."""
    escalated: bool = False
    """It had notice, had not ended when its time was over, and was killed."""


class Progress(Protocol):
    """Progress of a training."""

    step: int
    """The last that was reported; 0: none."""
    total: int
    """Steps of the training; 0: not known yet."""

    def read(self) -> None:
        """Read what is new."""


class Market:
    """Preemptions of a rehearsal's custom jobs, and regions without machines.

    Args:
        preemptions: Machines to take away, in this order; only of jobs with strategy SPOT.
        stockouts: Regions without machines: a job there fails, as after the service's own attempts (how long those
            take is not known).
        watch: Returns the progress of a training from the TMPDIR of its first machine; preemptions need it.
    """

    def __init__(
        self,
        *,
        preemptions: Iterable[Preemption] = (),
        stockouts: Iterable[str] = (),
        watch: Callable[[Path], Progress] | None = None,
    ) -> None:
        self._wanted, self._stockouts = list(preemptions), set(stockouts)
        self.watch = watch
        self._lock = threading.Lock()
        self.preempted: list[Preempted] = []
        """Those that happened."""
        self.without_machines: dict[str, list[str]] = {}
        """Display names of jobs that found no machines, by region."""

    @property
    def missing(self) -> int:
        """Number of preemptions that have not happened yet."""
        with self._lock:
            return len(self._wanted)

    def has_machines(self, region: str, job: str) -> bool:
        """Return whether a new job of this display name finds machines in a region; record it where it does not."""
        with self._lock:
            if region not in self._stockouts:
                return True
            self.without_machines.setdefault(region, []).append(job)
            return False

    def end_stockouts(self) -> None:
        """Let every job find machines from now on."""
        with self._lock:
            self._stockouts.clear()

    def due(self, display_name: str, num_nodes: int, step: int, total: int) -> Preemption | None:
        """Return the next preemption of a job when its time has come; `total` 0: its steps are not known yet."""
        with self._lock:
            first = next((one for one in self._wanted if one.job in display_name and one.node < num_nodes), None)
            is_due = first is not None and max(1, first.at_fraction * total) <= step < total
            return first if is_due else None

    def record(self, preemption: Preemption, preempted: Preempted) -> None:
        """Keep a preemption that has happened."""
        with self._lock:
            self._wanted.remove(preemption)
            self.preempted.append(preempted)


def spread(count: int, *, seed: int, nodes: int, job: str = "") -> tuple[Preemption, ...]:
    """Return preemptions over a training's steps: of both kinds in turn, the first of node 0, each later than the last.

    The seed decides nodes, moments and the first kind.
    """
    draw = random.Random(seed)
    kinds: tuple[Kind, Kind] = ("sigterm", "sigkill") if draw.random() < 0.5 else ("sigkill", "sigterm")
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
