"""How a training came to stand still: preemptions, crashes and ends, from the events of its attempts.

The one place that tells them apart: the account (contracts/goodput.py) counts what is found here, and the marks on the
time axis of a run's page are drawn from it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_TRY_AGAIN, EXIT_USER_ERROR

Event = Mapping[str, Any]

# Said by the project's own processes, or asked for by whoever ended them: nothing broke.
_NO_CRASH = (EXIT_OK, EXIT_CHECK_FAILED, EXIT_USER_ERROR, EXIT_TRY_AGAIN, -signal.SIGINT, -signal.SIGTERM, 130, 143)
# No training comes to more; what says more is damaged.
_MOST_STEPS = 2**53
_MOST_SECONDS = 1e12


@dataclass(frozen=True)
class Stop:
    """A moment at which a training stood still."""

    kind: Literal["preemption", "crash", "end"]
    time: float
    """Seconds since the epoch."""
    step: int | None
    """Optimizer steps until then; None: not known."""
    attempt: int
    """Its place among the attempts that were given."""
    words: str


def tells_of_training(events: Sequence[Event]) -> bool:
    """Whether an attempt is the first machine's, the only one that tells of the training, and did not find it done."""
    ranks = [event.get("node_rank") for event in events if event["event"] == "machine"]
    return bool(events) and ranks[-1:] in ([], [0]) and not any(event["event"] == "reused" for event in events)


def began_at(events: Sequence[Event]) -> float:
    """Return when an attempt was launched, in seconds since the epoch."""
    return float(events[0].get("launched_at", events[0]["time"]))


def find_stops(attempts: Sequence[Sequence[Event]]) -> list[Stop]:
    """Return how a training came to stand still, in the order of its attempts.

    preemption: all ranks agreed to stop because of a notice, or an attempt ended without a word before another began.
    crash: ranks were started again within an attempt without having agreed to stop, or an attempt ended by a fault or
    a signal that nobody sends on purpose. end: another agreed stop, or an end that the attempt itself has told.

    Args:
        attempts: The events of each attempt, as they were written; those that tell nothing of the training are passed
            over. Of the newest one that says nothing more, nobody knows whether it goes on.
    """
    told = [place for place, events in enumerate(attempts) if tells_of_training(events)]
    told.sort(key=lambda place: began_at(attempts[place]))
    return [stop for place in told for stop in _of_attempt(place, attempts[place], is_last=place == told[-1])]


def step_after(event: Event, before: int | None) -> int | None:
    """Return the step that a training has come to with an event; `before` where the event does not say."""
    value = event.get("step", event.get("done") if event.get("unit") == "steps" else None)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST_STEPS:
        return int(value)
    return before


def _of_attempt(place: int, events: Sequence[Event], *, is_last: bool) -> list[Stop]:
    found: list[Stop] = []
    step: int | None = None
    lives = 0
    agreed = finished = False
    ending: Event | None = None
    message = ""
    for event in events:
        kind, time = event["event"], float(event["time"])
        # Told by a thread, of an earlier step.
        step = step if kind == "checkpoint" else step_after(event, step)
        if kind == "life":
            lives += 1
            if lives > 1 and not agreed:
                found.append(Stop("crash", time, step, place, "ranks died and were started again in the attempt"))
            agreed = False
        elif kind == "stop":
            agreed = True
            words = f"stopped at step {step}: {event.get('cause', '')}"[:300]
            found.append(Stop("preemption" if event.get("preempted") else "end", time, step, place, words))
        elif kind == "finish":
            finished = True
            found.append(Stop("end", time, step, place, f"finished: {event.get('made', '')}"[:300]))
        elif kind in ("error", "exit"):
            ending, message = event, str(event.get("message", message))
    if finished or agreed:
        return found
    if ending is not None:
        code = ending.get("exit_code")
        known = isinstance(code, int) and not isinstance(code, bool)
        kind = "end" if known and code in _NO_CRASH else "crash"
        words = f"the attempt ended with exit code {code if known else EXIT_FAULT}" + (
            f": {message}" if message else ""
        )
        # What nobody told, 0 included, brought training to no end of its own.
        found.append(Stop(kind, float(ending["time"]), step, place, words[:300]))  # type: ignore[arg-type]
    elif not is_last:
        words = "the attempt ended without a word"
        found.append(Stop("preemption", float(events[-1]["time"]), step, place, words))
    return found


def finite_seconds(seconds: object) -> dict[str, float]:
    """Return the seconds of an event by section, of those that are numbers; a damaged one counts for nothing."""
    pairs = seconds.items() if isinstance(seconds, Mapping) else ()
    return {
        str(name): float(value)
        for name, value in pairs
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST_SECONDS
    }
