"""The goodput ledger: from the events of a training's attempts to where its time went. Pure arithmetic.

The launcher of each machine tells its place (machine: node_rank, nodes, preemptible), and the first rank of itself
(trainer/supervise/sections.py):

    life     life, started_at: its process is up; `life` names it in the events below
    resume   life, step, number, ranks, nodes: training goes on from a step (0: from the start); the number of this
             attempt at the training, over all runs
    spent    life, step, seconds: by section, since the life's last such event; the step it has come to
    stop     life, step, cause, preempted: all ranks agreed to stop here; by a signal or a notice where preempted

A `progress` between them tells the step alone: of a life that was killed, steps that no `spent` came to tell.

Beside them, outside of the account: checkpoint (life, step, seconds), told once when a checkpoint is committed. Its
seconds are those from the copy of the state on; only for `spent`'s of them did steps stand still.

Sections add up to the life of that process; what lies before, between and behind lives is told by the times of events.
Nothing is estimated and nothing is a remainder, so the classes add up to the wall time only if the account is right.
A rank that dies tells no more: its seconds since its last `spent` are in `recovery_s`, its steps count as far
as its last `progress`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from contracts.artifacts.goodput import GoodputRecord
from contracts.stops import Event, began_at, find_stops, finite_seconds, step_after, tells_of_training

# What a rank can be in, and the class that its seconds count as.
_CLASS_OF = {
    "set-up": "start_up_s",
    "restore": "start_up_s",
    "data": "data_wait_s",
    "step": "productive_s",
    "checkpoint": "checkpoint_s",
    "evaluation": "evaluation_s",
    "stop": "stop_s",
}
SECTION_NAMES = tuple(_CLASS_OF)
# Done in vain when training later goes on from an earlier step.
_REPEATED = ("data", "step", "checkpoint", "evaluation")
CLASS_NAMES = (*dict.fromkeys(_CLASS_OF.values()), "lost_s", "recovery_s")


@dataclass
class _Entry:
    """What one `spent` told."""

    first_step: int
    last_step: int
    seconds: dict[str, float]

    def lost_share(self, kept_step: int) -> float:
        """Return how much of it was done behind a step that training later went back to."""
        if self.last_step <= kept_step:
            return 0.0
        if self.first_step >= kept_step:
            return 1.0
        return (self.last_step - kept_step) / (self.last_step - self.first_step)


@dataclass
class _Life:
    started_at: float
    start_seen: bool = True
    """Whether its `life` event is there: on a full disk an event log loses lines."""
    resumed: int | None = None
    step: int = 0
    """Up to which its seconds are told."""
    progress: int = 0
    """The newest step that a `progress` told."""
    entries: list[_Entry] = field(default_factory=list)

    @property
    def newest_step(self) -> int:
        """The step that it has come to, as far as it told."""
        return max(self.step, self.progress)

    @property
    def ended_at(self) -> float:
        """When it last told of itself."""
        return self.started_at + sum(sum(entry.seconds.values()) for entry in self.entries)


@dataclass
class _Attempt:
    launched_at: float
    ended_at: float
    exit_seen: bool = False
    nodes: int = 1
    lives: dict[str, _Life] = field(default_factory=dict)


def account(attempts: Iterable[Sequence[Event]]) -> GoodputRecord:
    """Return where the time of a training went.

    Args:
        attempts: The events of each attempt, as they were written. Attempts that found a finished training are left
            out; one that goes on, or was killed, counts up to its last event.
    """
    # The hours of the other machines are counted with the first's, whose attempt knows how many there are.
    told = [events for events in attempts if tells_of_training(events)]
    read = sorted(map(_read, told), key=lambda attempt: attempt.launched_at)
    seconds = dict.fromkeys(CLASS_NAMES, 0.0)
    for attempt in read:
        _add_gaps(attempt, seconds)
    lives = [life for attempt in read for life in attempt.lives.values()]
    lost_steps = _add_lives(lives, seconds)
    wall_s = sum(attempt.ended_at - attempt.launched_at for attempt in read)
    node_hours = sum((attempt.ended_at - attempt.launched_at) * attempt.nodes for attempt in read) / 3600
    stops = [stop.kind for stop in find_stops(told)]
    preemptions = stops.count("preemption")
    return GoodputRecord(
        **{name: round(value, 3) for name, value in seconds.items()},
        wall_s=round(wall_s, 3),
        between_attempts_s=round(sum(max(0.0, b.launched_at - a.ended_at) for a, b in pairwise(read)), 3),
        goodput_percent=round(100 * seconds["productive_s"] / wall_s, 2) if wall_s > 0 else 0.0,
        attempts=len(read),
        starts=len(lives),
        steps=lives[-1].newest_step if lives else 0,
        lost_steps=lost_steps,
        preemptions=preemptions,
        interruptions=stops.count("interruption"),
        kills=stops.count("kill"),
        crashes=stops.count("crash"),
        node_hours=round(node_hours, 6),
        preemptions_per_node_hour=round(preemptions / node_hours, 4) if wall_s > 1 else None,
    )


def count_stops(record: GoodputRecord) -> str:
    """Return in words how often a training was disturbed, by cause; interruptions and kills where there were any."""
    more = (
        f"{count} {name}" for name, count in (("interruptions", record.interruptions), ("kills", record.kills)) if count
    )
    return ", ".join((f"{record.preemptions} preemptions", *more, f"{record.crashes} crashes"))


def _read(events: Sequence[Event]) -> _Attempt:
    first = events[0]
    attempt = _Attempt(began_at(events), float(first["time"]))
    for event in events:
        if not attempt.exit_seen:
            attempt.ended_at = max(attempt.ended_at, float(event["time"]))
        match event["event"]:
            case "exit":
                attempt.launched_at = float(event["launched_at"])
                attempt.ended_at = attempt.launched_at + float(event["wall_s"])
                attempt.exit_seen = True
            case "machine":
                attempt.nodes = int(event["nodes"])
            case "life":
                attempt.lives[event["life"]] = _Life(float(event["started_at"]))
            case "resume" | "spent":
                unseen = _Life(float(event["time"]), start_seen=False)
                _tell(attempt, attempt.lives.setdefault(event["life"], unseen), event)
            case "progress" if attempt.lives:
                life = next(reversed(attempt.lives.values()))
                life.progress = step_after(event, None) or life.progress
    return attempt


def _tell(attempt: _Attempt, life: _Life, event: Event) -> None:
    step = int(event["step"])
    match event["event"]:
        case "resume":
            attempt.nodes = int(event["nodes"])
            life.resumed = life.step = step
        case "spent":
            life.entries.append(_Entry(life.step, step, finite_seconds(event["seconds"])))
            life.step = step
            if not life.start_seen:
                # What it spent until now ends now.
                spent_s = life.ended_at - life.started_at
                life.started_at = min(life.started_at, float(event["time"]) - spent_s)


def _add_gaps(attempt: _Attempt, seconds: dict[str, float]) -> None:
    """Count the time of an attempt in which no first rank told of itself."""
    lives = sorted(attempt.lives.values(), key=lambda life: life.started_at)
    if not lives:
        seconds["start_up_s"] += attempt.ended_at - attempt.launched_at
        return
    seconds["start_up_s"] += lives[0].started_at - attempt.launched_at
    for before, after in pairwise(lives):
        seconds["recovery_s"] += after.started_at - before.ended_at
    # An attempt that was killed has its last event here; the life's may be a little later than its last word's time.
    seconds["stop_s"] += max(0.0, attempt.ended_at - lives[-1].ended_at)


def _add_lives(lives: Sequence[_Life], seconds: dict[str, float]) -> int:
    """Count what lives told of themselves, and return how many steps were lost."""
    lost_steps = 0
    # From the end: the earliest step that any later life went back to is what counts of an earlier one.
    kept_step: float = float("inf")
    for life in reversed(lives):
        for entry in life.entries:
            share = entry.lost_share(int(kept_step)) if kept_step != float("inf") else 0.0
            for section, value in entry.seconds.items():
                lost = value * share if section in _REPEATED else 0.0
                seconds["lost_s"] += lost
                seconds[_CLASS_OF[section]] += value - lost
        if life.newest_step > kept_step:
            lost_steps += life.newest_step - int(max(kept_step, life.resumed or 0))
        if life.resumed is not None:
            kept_step = min(kept_step, life.resumed)
    return lost_steps
