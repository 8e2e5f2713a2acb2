"""The account of a training, from the events of its attempts: where its time went, and what made it stand still.

docs/goodput.md has the events, the classes of time and the kinds of stops. The launcher of each machine tells its place
(`machine`), the first rank of itself (trainer/supervise/account.py): `life`, `resume`, `spent`, `stop`, `progress`.

Sections add up to the life of that process; what lies before, between and behind lives is told by the times of events.
Nothing is estimated and nothing is a remainder, so the classes add up to the wall time only if the account is right.
A rank that dies tells no more: its seconds since its last `spent` are in `recovery_s`, its steps count as far
as its last `progress`. A full disk loses events: any of them may be missing.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeGuard

from contracts.artifacts.goodput import GoodputRecord
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from contracts.process import ASKS_AGAIN

Event = Mapping[str, Any]
StopKind = Literal["preemption", "interruption", "kill", "crash", "end"]

# Sections of a rank, and the class that their seconds count as.
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

# Exit codes of the project's own processes, or asked for by whoever ended them: nothing broke.
_NO_CRASH = (EXIT_OK, EXIT_CHECK_FAILED, EXIT_USER_ERROR, *ASKS_AGAIN, -signal.SIGINT, -signal.SIGTERM, 130, 143)
# What a signal to a process means on a machine that nobody takes away.
_KIND_OF_SIGNAL: dict[signal.Signals, StopKind] = {
    signal.SIGINT: "interruption",
    signal.SIGTERM: "interruption",
    signal.SIGHUP: "interruption",
    signal.SIGKILL: "kill",
}
# No training comes to more; what says more is damaged.
_MOST_STEPS = 2**53
_MOST_SECONDS = 1e12
_MOST_WORDS = 300


@dataclass(frozen=True)
class Stop:
    """A moment at which a training stood still."""

    kind: StopKind
    time: float
    """Seconds since the epoch."""
    step: int | None
    """Optimizer steps until then; None: not known."""
    attempt: int
    """Its place among the attempts that were given."""
    words: str


@dataclass
class _Life:
    """The first rank's process, as far as it told of itself."""

    started_at: float
    told_start: bool
    """Whether its `life` says when it started."""
    resumed: int | None = None
    step: int = 0
    """Step that the last `spent` came to."""
    newest_step: int = 0
    spent: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    """First step, last step and seconds by section of each `spent`."""

    total_s: float = 0.0
    """Seconds of all `spent`."""

    @property
    def ended_at(self) -> float:
        return self.started_at + self.total_s


def tells_of_training(events: Sequence[Event]) -> bool:
    """Whether an attempt is the first machine's, the only one that tells of the training, and did not find it done."""
    ranks = [event.get("node_rank") for event in events if event["event"] == "machine"]
    return bool(events) and ranks[-1:] in ([], [0]) and not any(event["event"] == "reused" for event in events)


def step_after(event: Event, before: int | None) -> int | None:
    """Return the step that a training has come to with an event; `before` where the event does not say."""
    value = event.get("step", event.get("done") if event.get("unit") == "steps" else None)
    return int(value) if _is_number(value) and 0 <= value <= _MOST_STEPS else before


def finite_seconds(seconds: object) -> dict[str, float]:
    """Return the seconds of an event by section, of those that are numbers; a damaged one counts for nothing."""
    pairs = seconds.items() if isinstance(seconds, Mapping) else ()
    return {str(name): float(value) for name, value in pairs if _is_number(value) and abs(value) < _MOST_SECONDS}


def account(attempts: Iterable[Sequence[Event]]) -> GoodputRecord:
    """Return where the time of a training went.

    Args:
        attempts: The events of each attempt, as they were written. Attempts that found a finished training are left
            out; one that goes on, or was killed, counts up to its last event.
    """
    # The hours of the other machines are counted with the first's, whose attempt knows how many there are.
    told = sorted((events for events in attempts if tells_of_training(events)), key=_began_at)
    seconds = dict.fromkeys(CLASS_NAMES, 0.0)
    lives: list[_Life] = []
    spans: list[tuple[float, float]] = []
    node_hours = 0.0
    for events in told:
        began, ended = _span_of(events)
        own = _lives_of(events)
        _add_gaps(began, ended, own, seconds)
        nodes = [int(event["nodes"]) for event in events if event["event"] in ("machine", "resume")]
        node_hours += (ended - began) * (nodes or [1])[-1] / 3600
        spans.append((began, ended))
        lives += own
    lost_steps = _add_lives(lives, seconds)
    wall_s = sum(ended - began for began, ended in spans)
    stops = Counter(stop.kind for stop in find_stops(told))
    return GoodputRecord(
        **{name: round(value, 3) for name, value in seconds.items()},
        wall_s=round(wall_s, 3),
        between_attempts_s=round(sum(max(0.0, after[0] - before[1]) for before, after in pairwise(spans)), 3),
        goodput_percent=round(100 * seconds["productive_s"] / wall_s, 2) if wall_s > 0 else 0.0,
        attempts=len(told),
        starts=len(lives),
        steps=lives[-1].newest_step if lives else 0,
        lost_steps=lost_steps,
        preemptions=stops["preemption"],
        interruptions=stops["interruption"],
        kills=stops["kill"],
        crashes=stops["crash"],
        node_hours=round(node_hours, 6),
        preemptions_per_node_hour=round(stops["preemption"] / node_hours, 4) if wall_s > 1 else None,
    )


def count_stops(record: GoodputRecord) -> str:
    """Return in words how often a training was disturbed, by cause; interruptions and kills where there were any."""
    rare = (("interruptions", record.interruptions), ("kills", record.kills))
    words = [f"{count} {name}" for name, count in rare if count]
    return ", ".join([f"{record.preemptions} preemptions", *words, f"{record.crashes} crashes"])


def find_stops(attempts: Sequence[Sequence[Event]]) -> list[Stop]:
    """Return what made a training stand still, in the order of its attempts.

    An attempt that did not come to tell its machine is on one like the others'; if none did, on one that may be taken.

    Args:
        attempts: The events of each attempt, as they were written; those that tell nothing of the training are passed
            over. Of the newest one that says nothing more, nobody knows whether it goes on.
    """
    told = [place for place, events in enumerate(attempts) if tells_of_training(events)]
    told.sort(key=lambda place: _began_at(attempts[place]))
    flags = {
        place: bool(event["preemptible"])
        for place in told
        for event in attempts[place]
        if event["event"] == "machine" and "preemptible" in event
    }
    usual = next((flags[place] for place in told if place in flags), True)
    found: list[Stop] = []
    for place in told:
        preemptible = flags.get(place, usual)
        found += _stops_of(place, attempts[place], preemptible, is_newest=place == told[-1])
    return found


def _stops_of(place: int, events: Sequence[Event], preemptible: bool, *, is_newest: bool) -> list[Stop]:
    found: list[Stop] = []
    step: int | None = None

    def add(kind: StopKind, event: Event, words: str) -> None:
        found.append(Stop(kind, float(event["time"]), step, place, words[:_MOST_WORDS]))

    has_life = is_over = is_finished = False
    ending: Event | None = None
    message = ""
    interruption = next((f"interrupted by {e.get('signal')}" for e in events if e["event"] == "interrupted"), "")
    for event in events:
        # A checkpoint is told by a thread, of an earlier step.
        step = step if event["event"] == "checkpoint" else step_after(event, step)
        match event["event"]:
            case "life":
                if has_life and not is_over:
                    add("crash", event, "ranks died and were started again in the attempt")
                has_life, is_over = True, False
            case "stop":
                is_over = True
                by_signal: StopKind = "preemption" if preemptible and not interruption else "interruption"
                words = f"stopped at step {step}: {interruption or event.get('cause', '')}"
                add(by_signal if event.get("preempted") else "end", event, words)
            case "finish":
                is_finished = True
                add("end", event, f"finished: {event.get('made', '')}")
            case "error" | "exit":
                ending, message = event, str(event.get("message", message))
    if is_over or is_finished:
        return found
    if interruption:
        add("interruption", ending or events[-1], interruption)
    elif ending is not None:
        add(*_judge(ending, message, preemptible))
    elif not is_newest:
        kind: StopKind = "preemption" if preemptible else "kill"
        add(
            kind, events[-1], "the attempt ended without a word" + ("" if preemptible else ": killed, or out of memory")
        )
    return found


def _judge(ending: Event, message: str, preemptible: bool) -> tuple[StopKind, Event, str]:
    """Return the kind and words of an end that an attempt told by its exit code."""
    code = ending.get("exit_code")
    if not isinstance(code, int) or isinstance(code, bool):
        return "crash", ending, f"the attempt ended with exit code {EXIT_FAULT}" + (message and f": {message}")
    # As a parent, or a shell, sees a process that a signal ended.
    number = next((one for one in _KIND_OF_SIGNAL if code in (-one, 128 + one)), None)
    if number is not None and not preemptible:
        return _KIND_OF_SIGNAL[number], ending, f"the attempt was ended by {number.name}"
    # What nobody told, 0 included, brought training to no end of its own.
    words = f"the attempt ended with exit code {code}" + (message and f": {message}")
    return "end" if code in _NO_CRASH else "crash", ending, words


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _began_at(events: Sequence[Event]) -> float:
    return float(events[0].get("launched_at", events[0]["time"]))


def _span_of(events: Sequence[Event]) -> tuple[float, float]:
    """Return when an attempt was launched, and when it ended, or last told of itself."""
    for event in events:
        if event["event"] == "exit":
            launched_at = float(event["launched_at"])
            return launched_at, launched_at + float(event["wall_s"])
    return _began_at(events), max(float(event["time"]) for event in events)


def _lives_of(events: Sequence[Event]) -> list[_Life]:
    """Return what the first rank told of itself, by the starts of its process."""
    lives: dict[str, _Life] = {}
    for event in events:
        time, step = float(event["time"]), step_after(event, None) or 0
        match event["event"]:
            case "life":
                lives[event["life"]] = _Life(float(event["started_at"]), told_start=True)
            case "progress" if lives:
                life = next(reversed(lives.values()))
                life.newest_step = step or life.newest_step
            case "resume" | "spent":
                life = lives.setdefault(event["life"], _Life(time, told_start=False))
                if event["event"] == "resume":
                    life.resumed = step
                else:
                    spent = finite_seconds(event["seconds"])
                    life.spent.append((life.step, step, spent))
                    life.total_s += sum(spent.values())
                    if not life.told_start:
                        # What it spent until now ends now.
                        life.started_at = min(life.started_at, time - life.total_s)
                life.step, life.newest_step = step, max(life.newest_step, step)
    return list(lives.values())


def _add_gaps(began: float, ended: float, lives: Sequence[_Life], seconds: dict[str, float]) -> None:
    """Count the time of an attempt in which no first rank told of itself."""
    if not lives:
        seconds["start_up_s"] += ended - began
        return
    ordered = sorted(lives, key=lambda life: life.started_at)
    seconds["start_up_s"] += ordered[0].started_at - began
    for before, after in pairwise(ordered):
        seconds["recovery_s"] += after.started_at - before.ended_at
    # An attempt that was killed has its last event here; the life's may be a little later than its last word's time.
    seconds["stop_s"] += max(0.0, ended - ordered[-1].ended_at)


def _add_lives(lives: Sequence[_Life], seconds: dict[str, float]) -> int:
    """Count what lives told of themselves, and return how many steps were lost."""
    lost_steps = 0
    # From the end: the earliest step that any later life went back to is what counts of an earlier one.
    kept_step = _MOST_STEPS
    for life in reversed(lives):
        for first, last, spent in life.spent:
            # Of a `spent` across the kept step, the part behind it.
            behind = min(last - first, last - kept_step)
            share = 0.0 if last <= kept_step else behind / (last - first) if last > first else 1.0
            for section, value in spent.items():
                lost = value * share if section in _REPEATED else 0.0
                seconds["lost_s"] += lost
                seconds[_CLASS_OF[section]] += value - lost
        lost_steps += max(0, life.newest_step - max(kept_step, life.resumed or 0))
        if life.resumed is not None:
            kept_step = min(kept_step, life.resumed)
    return lost_steps
