"""Goodput of a training, computed from the events of its attempts: classes of time, and causes of stops.

docs/goodput.md describes the events, the classes of time and the kinds of stops. The launcher of each machine emits
`machine`; the first rank emits `life`, `resume`, `spent`, `stop` and `progress` (trainer/supervise/account.py).

The sections of a process add up to its lifetime; times of events give the gaps before, between and after processes.
Nothing is estimated or computed as a remainder, so the classes add up to the wall time only if the account is right.
When a rank dies, its seconds since the last `spent` count as `recovery_s`, and its steps up to the last `progress`
count. Any event may be missing, since a full disk loses them.
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

# Class of time of each section of a rank.
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
# Sections that are lost when training resumes from an earlier step.
_REPEATED = ("data", "step", "checkpoint", "evaluation")
CLASS_NAMES = (*dict.fromkeys(_CLASS_OF.values()), "lost_s", "recovery_s")

# Exit codes that are no crash: those of the project, and those of requested ends.
_NO_CRASH = (EXIT_OK, EXIT_CHECK_FAILED, EXIT_USER_ERROR, *ASKS_AGAIN, -signal.SIGINT, -signal.SIGTERM, 130, 143)
# Kind of stop by signal on a machine that is not preemptible.
_KIND_OF_SIGNAL: dict[signal.Signals, StopKind] = {
    signal.SIGINT: "interruption",
    signal.SIGTERM: "interruption",
    signal.SIGHUP: "interruption",
    signal.SIGKILL: "kill",
}
# Plausible limits; an event beyond them is damaged.
_MAX_STEPS = 2**53
_MAX_SECONDS = 1e12
_MAX_REASON_CHARS = 300


@dataclass(frozen=True)
class Stop:
    """A stop of a training."""

    kind: StopKind
    time: float
    """Seconds since the epoch."""
    step: int | None
    """Optimizer steps before it; None: unknown."""
    attempt: int
    """Index of its attempt."""
    words: str


@dataclass
class _Life:
    """One process of the first rank, by its events."""

    started_at: float
    has_start_time: bool
    """Whether `started_at` is known from its event `life`."""
    resumed: int | None = None
    step: int = 0
    """Step of the last `spent`."""
    newest_step: int = 0
    spent: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    """First step, last step and seconds by section of each `spent`."""

    total_s: float = 0.0
    """Seconds of all `spent`."""

    @property
    def ended_at(self) -> float:
        return self.started_at + self.total_s


def tells_of_training(events: Sequence[Event]) -> bool:
    """Whether an attempt has events of a training: it is the first machine's, and did not reuse a finished one."""
    ranks = [event.get("node_rank") for event in events if event["event"] == "machine"]
    return bool(events) and ranks[-1:] in ([], [0]) and not any(event["event"] == "reused" for event in events)


def step_after(event: Event, before: int | None) -> int | None:
    """Return the step of an event; `before` if the event has none."""
    value = event.get("step", event.get("done") if event.get("unit") == "steps" else None)
    return int(value) if _is_number(value) and 0 <= value <= _MAX_STEPS else before


def finite_seconds(seconds: object) -> dict[str, float]:
    """Return the finite seconds of an event by section; damaged values are dropped."""
    pairs = seconds.items() if isinstance(seconds, Mapping) else ()
    return {str(name): float(value) for name, value in pairs if _is_number(value) and abs(value) < _MAX_SECONDS}


def account(attempts: Iterable[Sequence[Event]]) -> GoodputRecord:
    """Return the goodput of a training.

    Args:
        attempts: The events of each attempt in order. Attempts that reused a finished training are skipped; an attempt
            that is running, or was killed, counts up to its last event.
    """
    # The first machine's attempt has the number of machines, so it counts the hours of all.
    reporting = sorted((events for events in attempts if tells_of_training(events)), key=_began_at)
    seconds = dict.fromkeys(CLASS_NAMES, 0.0)
    lives: list[_Life] = []
    spans: list[tuple[float, float]] = []
    node_hours = 0.0
    for events in reporting:
        began, ended = _span_of(events)
        attempt_lives = _lives_of(events)
        _add_gaps(began, ended, attempt_lives, seconds)
        nodes = [int(event["nodes"]) for event in events if event["event"] in ("machine", "resume")]
        node_hours += (ended - began) * (nodes or [1])[-1] / 3600
        spans.append((began, ended))
        lives += attempt_lives
    lost_steps = _add_lives(lives, seconds)
    wall_s = sum(ended - began for began, ended in spans)
    stops = Counter(stop.kind for stop in find_stops(reporting))
    return GoodputRecord(
        **{name: round(value, 3) for name, value in seconds.items()},
        wall_s=round(wall_s, 3),
        between_attempts_s=round(sum(max(0.0, after[0] - before[1]) for before, after in pairwise(spans)), 3),
        goodput_percent=round(100 * seconds["productive_s"] / wall_s, 2) if wall_s > 0 else 0.0,
        attempts=len(reporting),
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
    """Return a text with the number of stops by cause; interruptions and kills only if there were any."""
    rare = (("interruptions", record.interruptions), ("kills", record.kills))
    counts = [f"{count} {name}" for name, count in rare if count]
    return ", ".join([f"{record.preemptions} preemptions", *counts, f"{record.crashes} crashes"])


def find_stops(attempts: Sequence[Sequence[Event]]) -> list[Stop]:
    """Return the stops of a training, in the order of its attempts.

    An attempt without the event `machine` counts as preemptible as the others; if none has one, as preemptible.

    Args:
        attempts: The events of each attempt in order; attempts without events of the training are skipped. The newest
            attempt may still be running: without an ending it is no stop.
    """
    reporting = [place for place, events in enumerate(attempts) if tells_of_training(events)]
    reporting.sort(key=lambda place: _began_at(attempts[place]))
    flags = {
        place: bool(event["preemptible"])
        for place in reporting
        for event in attempts[place]
        if event["event"] == "machine" and "preemptible" in event
    }
    usual = next((flags[place] for place in reporting if place in flags), True)
    stops: list[Stop] = []
    for place in reporting:
        preemptible = flags.get(place, usual)
        stops += _stops_of(place, attempts[place], preemptible, is_newest=place == reporting[-1])
    return stops


def _stops_of(place: int, events: Sequence[Event], preemptible: bool, *, is_newest: bool) -> list[Stop]:
    stops: list[Stop] = []
    step: int | None = None

    def add(kind: StopKind, event: Event, reason: str) -> None:
        stops.append(Stop(kind, float(event["time"]), step, place, reason[:_MAX_REASON_CHARS]))

    has_life = is_over = is_finished = False
    ending: Event | None = None
    message = ""
    interruption = next((f"interrupted by {e.get('signal')}" for e in events if e["event"] == "interrupted"), "")
    for event in events:
        # A thread emits `checkpoint`, with an earlier step.
        step = step if event["event"] == "checkpoint" else step_after(event, step)
        match event["event"]:
            case "life":
                if has_life and not is_over:
                    add("crash", event, "ranks died and were started again in the attempt")
                has_life, is_over = True, False
            case "stop":
                is_over = True
                by_signal: StopKind = "preemption" if preemptible and not interruption else "interruption"
                reason = f"stopped at step {step}: {interruption or event.get('cause', '')}"
                add(by_signal if event.get("preempted") else "end", event, reason)
            case "finish":
                is_finished = True
                add("end", event, f"finished: {event.get('made', '')}")
            case "error" | "exit":
                ending, message = event, str(event.get("message", message))
    if is_over or is_finished:
        return stops
    if interruption:
        add("interruption", ending or events[-1], interruption)
    elif ending is not None:
        add(*_classify_ending(ending, message, preemptible))
    elif not is_newest:
        kind: StopKind = "preemption" if preemptible else "kill"
        add(
            kind, events[-1], "the attempt ended without a word" + ("" if preemptible else ": killed, or out of memory")
        )
    return stops


def _classify_ending(ending: Event, message: str, preemptible: bool) -> tuple[StopKind, Event, str]:
    """Return kind, event and description of the stop of an attempt with an exit code."""
    code = ending.get("exit_code")
    if not isinstance(code, int) or isinstance(code, bool):
        return "crash", ending, f"the attempt ended with exit code {EXIT_FAULT}" + (message and f": {message}")
    # Exit codes of a signal as seen by a parent process and by a shell.
    number = next((sig for sig in _KIND_OF_SIGNAL if code in (-sig, 128 + sig)), None)
    if number is not None and not preemptible:
        return _KIND_OF_SIGNAL[number], ending, f"the attempt was ended by {number.name}"
    reason = f"the attempt ended with exit code {code}" + (message and f": {message}")
    return "end" if code in _NO_CRASH else "crash", ending, reason


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _began_at(events: Sequence[Event]) -> float:
    return float(events[0].get("launched_at", events[0]["time"]))


def _span_of(events: Sequence[Event]) -> tuple[float, float]:
    """Return the launch time of an attempt, and the time of its end or its last event."""
    for event in events:
        if event["event"] == "exit":
            launched_at = float(event["launched_at"])
            return launched_at, launched_at + float(event["wall_s"])
    return _began_at(events), max(float(event["time"]) for event in events)


def _lives_of(events: Sequence[Event]) -> list[_Life]:
    """Return the processes of the first rank in an attempt."""
    lives: dict[str, _Life] = {}
    for event in events:
        time, step = float(event["time"]), step_after(event, None) or 0
        match event["event"]:
            case "life":
                lives[event["life"]] = _Life(float(event["started_at"]), has_start_time=True)
            case "progress" if lives:
                life = next(reversed(lives.values()))
                life.newest_step = step or life.newest_step
            case "resume" | "spent":
                life = lives.setdefault(event["life"], _Life(time, has_start_time=False))
                if event["event"] == "resume":
                    life.resumed = step
                else:
                    spent = finite_seconds(event["seconds"])
                    life.spent.append((life.step, step, spent))
                    life.total_s += sum(spent.values())
                    if not life.has_start_time:
                        life.started_at = min(life.started_at, time - life.total_s)
                life.step, life.newest_step = step, max(life.newest_step, step)
    return list(lives.values())


def _add_gaps(began: float, ended: float, lives: Sequence[_Life], seconds: dict[str, float]) -> None:
    """Add the time of an attempt without a process of the first rank."""
    if not lives:
        seconds["start_up_s"] += ended - began
        return
    ordered = sorted(lives, key=lambda life: life.started_at)
    seconds["start_up_s"] += ordered[0].started_at - began
    for earlier, later in pairwise(ordered):
        seconds["recovery_s"] += later.started_at - earlier.ended_at
    # For a killed attempt `ended` is its last event, which may be slightly before the end of the life.
    seconds["stop_s"] += max(0.0, ended - ordered[-1].ended_at)


def _add_lives(lives: Sequence[_Life], seconds: dict[str, float]) -> int:
    """Add the seconds of all processes by class, and return the number of lost steps."""
    lost_steps = 0
    # In reverse: steps of a life count up to the earliest step that any later life resumed from.
    kept_step = _MAX_STEPS
    for life in reversed(lives):
        for first, last, spent in life.spent:
            # Share of a `spent` after the kept step.
            steps_after = min(last - first, last - kept_step)
            share = 0.0 if last <= kept_step else steps_after / (last - first) if last > first else 1.0
            for section, value in spent.items():
                lost = value * share if section in _REPEATED else 0.0
                seconds["lost_s"] += lost
                seconds[_CLASS_OF[section]] += value - lost
        lost_steps += max(0, life.newest_step - max(kept_step, life.resumed or 0))
        if life.resumed is not None:
            kept_step = min(kept_step, life.resumed)
    return lost_steps
