"""The market that spot machines come from: which are taken away, and when there are none.

Preemptions are decided before a job starts, from a seed; when each happens is read from the job's own training events,
so that a slow machine loses the same step as a fast one. What is counted is what really hit a running machine.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sigterm", "sigkill"]
Place = tuple[str, str, str]
"""Region, machine type and strategy."""
# Of a training's steps: a preemption before the first or after the last one would prove nothing.
_EARLIEST, _LATEST = 0.2, 0.8


@dataclass(frozen=True)
class Preemption:
    """One machine to be taken away. The first of at_step, at_fraction and after_s that is set decides when."""

    node: int
    """0 is the machine of the first pool, the others follow."""
    kind: Kind
    """With a signal and the time to react, or at once. Whether Vertex passes a notice on is not documented."""
    at_step: int | None = None
    """Once training has taken this step."""
    at_fraction: float | None = None
    """Once training has taken this part of its steps."""
    after_s: float = 0.0
    """Seconds, of the platform's, after the machines have started."""
    job: str = ""
    """Only jobs whose display name holds this text."""

    def is_due(self, step: int, total: int, running_s: float) -> bool:
        """Whether it is time; `step` and `total` are 0 as long as nothing is known of them."""
        if self.at_step is not None:
            return 0 < self.at_step <= step and (total == 0 or step < total)
        if self.at_fraction is not None:
            return total > 0 and max(1, self.at_fraction * total) <= step < total
        return running_s >= self.after_s


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


class Market:
    """What becomes of the custom jobs of a rehearsal.

    Args:
        seed: Of everything that is drawn.
        preemptions: Machines to take away, in this order; only of jobs with strategy SPOT.
        rate: Preemptions for each machine and hour (of the platform's) of running, beside those; drawn at each start.
        stockouts: How many jobs find no machines, by place.
        stockout: Whether such a job stays pending, or fails as Vertex says it may.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        preemptions: Iterable[Preemption] = (),
        rate: float = 0.0,
        stockouts: Mapping[Place, int] | None = None,
        stockout: Literal["pending", "fail"] = "pending",
    ) -> None:
        self._random = random.Random(seed)
        self._wanted = list(preemptions)
        self._rate = rate
        self._stockouts = dict(stockouts or {})
        self.stockout = stockout
        self._lock = threading.Lock()
        self.preempted: list[Preempted] = []
        """Those that happened."""

    @property
    def missing(self) -> int:
        """How many of the preemptions asked for have not happened."""
        with self._lock:
            return len(self._wanted)

    def take_stockout(self, region: str, machine: str, strategy: str) -> bool:
        """Whether a new job finds no machines; a count ends by it."""
        with self._lock:
            left = self._stockouts.get((region, machine, strategy), 0)
            if left > 0:
                self._stockouts[region, machine, strategy] = left - 1
            return left > 0

    def draw(self, nodes: int, display_name: str) -> list[Preemption]:
        """Return preemptions that the rate brings a job, by time."""
        with self._lock:
            if self._rate <= 0:
                return []
            times = [(3600 * self._random.expovariate(self._rate), node) for node in range(nodes)]
            return [
                Preemption(node, self._random.choice(("sigterm", "sigkill")), after_s=after_s, job=display_name)
                for after_s, node in sorted(times)
            ]

    def due(
        self, drawn: list[Preemption], display_name: str, nodes: int, at: tuple[int, int, float]
    ) -> Preemption | None:
        """Return a preemption whose time has come for a job: the next of those asked for, or one that was drawn.

        Args:
            drawn: Of this job, by the rate.
            display_name: Of the job.
            nodes: Its machines.
            at: Step, total number of steps, and seconds since its machines have started.
        """
        with self._lock:
            first = next((one for one in self._wanted if one.job in display_name and one.node < nodes), None)
            return next((one for one in (first, *drawn) if one is not None and one.is_due(*at)), None)

    def note(self, preemption: Preemption, happened: Preempted) -> None:
        """Keep what happened."""
        with self._lock:
            if preemption in self._wanted:
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
