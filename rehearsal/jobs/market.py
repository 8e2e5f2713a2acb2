"""Spot market: preemptions of machines, and regions without machines.

Preemptions are chosen from a seed before a job starts, as fractions of the training's steps: slow and fast machines are
preempted at the same step. The market records those that happened.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["sigterm", "sigkill"]
# Range of preemptions as fractions of a training's steps: early or late ones would test nothing.
_EARLIEST, _LATEST = 0.2, 0.8


@dataclass(frozen=True)
class Preemption:
    """A planned preemption of one machine."""

    node: int
    """0 is the machine of the first pool, the others follow."""
    kind: Kind
    """SIGTERM with the notice time, or SIGKILL at once. Whether Vertex AI forwards a notice is not documented."""
    at_fraction: float
    """Fraction of the training's steps at which it happens."""
    job: str = ""
    """Only jobs whose display name contains this text."""


@dataclass(frozen=True)
class Preempted:
    """A preemption that happened."""

    display_name: str
    """Display name of the custom job."""
    node: int
    kind: Kind
    step: int
    """Last step that the training had reported; 0: none."""
    exit_code: int | None = None
    """Exit code of its container; negative for a signal."""
    escalated: bool = False
    """It got a notice, did not exit in time, and was killed."""


class Progress(Protocol):
    """Progress of a training."""

    step: int
    """Last reported step; 0: none."""
    total: int
    """Steps of the training; 0: not known yet."""

    def read(self) -> None:
        """Read new events."""


class Market:
    """Preemptions of a rehearsal's custom jobs, and regions without machines.

    Args:
        preemptions: Planned preemptions, in this order; only of jobs with strategy SPOT.
        stockouts: Regions without machines: jobs there fail at once (the real service's waiting time is unknown).
        watch: Returns the progress of a training from the TMPDIR of its first machine; preemptions need it.
    """

    def __init__(
        self,
        *,
        preemptions: Iterable[Preemption] = (),
        stockouts: Iterable[str] = (),
        watch: Callable[[Path], Progress] | None = None,
    ) -> None:
        self._pending, self._stockouts = list(preemptions), set(stockouts)
        self.watch = watch
        self._lock = threading.Lock()
        self.preempted: list[Preempted] = []
        """Preemptions that happened."""
        self.without_machines: dict[str, list[str]] = {}
        """Display names of jobs that found no machines, by region."""

    @property
    def missing(self) -> int:
        """Number of preemptions that have not happened yet."""
        with self._lock:
            return len(self._pending)

    def has_machines(self, region: str, job: str) -> bool:
        """Return whether a region has machines for a job of this display name; record a stockout."""
        with self._lock:
            if region not in self._stockouts:
                return True
            self.without_machines.setdefault(region, []).append(job)
            return False

    def end_stockouts(self) -> None:
        """Provide machines in every region from now on."""
        with self._lock:
            self._stockouts.clear()

    def due(self, display_name: str, num_nodes: int, step: int, total: int) -> Preemption | None:
        """Return the next preemption of a job if it is due; `total` 0: its steps are not known yet."""
        with self._lock:
            upcoming = next(
                (item for item in self._pending if item.job in display_name and item.node < num_nodes), None
            )
            is_due = upcoming is not None and max(1, upcoming.at_fraction * total) <= step < total
            return upcoming if is_due else None

    def record(self, preemption: Preemption, preempted: Preempted) -> None:
        """Record a preemption that has happened."""
        with self._lock:
            self._pending.remove(preemption)
            self.preempted.append(preempted)


def spread(count: int, *, seed: int, nodes: int, job: str = "") -> tuple[Preemption, ...]:
    """Return preemptions in increasing order of steps, of alternating kinds, the first of node 0.

    The seed determines nodes, steps and the first kind.
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
