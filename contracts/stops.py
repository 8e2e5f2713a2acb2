"""How a training came to stand still: preemptions, interruptions, kills, crashes and ends, by its attempts' events.

The one place that tells them apart: the account (contracts/goodput.py) counts what is found here, and the marks on the
time axis of a run's page are drawn from it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from contracts.process import ASKS_AGAIN

Event = Mapping[str, Any]

# Said by the project's own processes, or asked for by whoever ended them: nothing broke.
_NO_CRASH = (EXIT_OK, EXIT_CHECK_FAILED, EXIT_USER_ERROR, *ASKS_AGAIN, -signal.SIGINT, -signal.SIGTERM, 130, 143)
# No training comes to more; what says more is damaged.
_MOST_STEPS = 2**53
_MOST_SECONDS = 1e12


StopKind = Literal["preemption", "interruption", "kill", "crash", "end"]
# What a signal to a process means on a machine that nobody takes away.
_KIND_OF_SIGNAL: Mapping[signal.Signals, StopKind] = {
    signal.SIGINT: "interruption",
    signal.SIGTERM: "interruption",
    signal.SIGHUP: "interruption",
    signal.SIGKILL: "kill",
}


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


def tells_of_training(events: Sequence[Event]) -> bool:
    """Whether an attempt is the first machine's, the only one that tells of the training, and did not find it done."""
    ranks = [event.get("node_rank") for event in events if event["event"] == "machine"]
    return bool(events) and ranks[-1:] in ([], [0]) and not any(event["event"] == "reused" for event in events)


def began_at(events: Sequence[Event]) -> float:
    """Return when an attempt was launched, in seconds since the epoch."""
    return float(events[0].get("launched_at", events[0]["time"]))


def find_stops(attempts: Sequence[Sequence[Event]]) -> list[Stop]:
    """Return how a training came to stand still, in the order of its attempts.

    preemption: on a machine that a platform may take away (event machine, `preemptible`), all ranks agreed to stop
    because of a signal or a notice, or an attempt ended without a word before another began.
    interruption: a user's signal, Ctrl-C or SIGTERM, to the command or, on a machine that nobody takes away, to ranks.
    kill: on such a machine an attempt ended without a word before another began, or by SIGKILL.
    crash: ranks were started again within an attempt without having agreed to stop, or an attempt ended by a fault or
    a signal that nobody sends on purpose. end: another agreed stop, or an end that the attempt itself has told.
    Attempts of versions that do not tell of their machine count as on one that may be taken away.

    Args:
        attempts: The events of each attempt, as they were written; those that tell nothing of the training are passed
            over. Of the newest one that says nothing more, nobody knows whether it goes on.
    """
    told = [place for place, events in enumerate(attempts) if tells_of_training(events)]
    told.sort(key=lambda place: began_at(attempts[place]))
    found: list[Stop] = []
    # What ended before it could tell is on a machine like that of the others.
    said = [flag for place in told if (flag := _preemptible(attempts[place])) is not None]
    for place in told:
        flag = _preemptible(attempts[place])
        preemptible = (not said or said[0]) if flag is None else flag
        found += _of_attempt(place, attempts[place], is_last=place == told[-1], preemptible=preemptible)
    return found


def step_after(event: Event, before: int | None) -> int | None:
    """Return the step that a training has come to with an event; `before` where the event does not say."""
    value = event.get("step", event.get("done") if event.get("unit") == "steps" else None)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST_STEPS:
        return int(value)
    return before


def _preemptible(events: Sequence[Event]) -> bool | None:
    """Return whether a platform may take an attempt's machine away, as the attempt tells; None: it does not."""
    flags = [event["preemptible"] for event in events if event["event"] == "machine" and "preemptible" in event]
    return bool(flags[-1]) if flags else None


def _of_attempt(place: int, events: Sequence[Event], *, is_last: bool, preemptible: bool) -> list[Stop]:
    found: list[Stop] = []
    step: int | None = None
    lives = 0
    agreed = finished = False
    ending: Event | None = None
    message = ""
    interrupted = next((f"interrupted by {e.get('signal')}" for e in events if e["event"] == "interrupted"), "")
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
            words = f"stopped at step {step}: {interrupted or event.get('cause', '')}"[:300]
            by_signal: StopKind = "preemption" if preemptible and not interrupted else "interruption"
            found.append(Stop(by_signal if event.get("preempted") else "end", time, step, place, words))
        elif kind == "finish":
            finished = True
            found.append(Stop("end", time, step, place, f"finished: {event.get('made', '')}"[:300]))
        elif kind in ("error", "exit"):
            ending, message = event, str(event.get("message", message))
    if finished or agreed:
        return found
    if interrupted:
        last = ending or events[-1]
        found.append(Stop("interruption", float(last["time"]), step, place, interrupted[:300]))
    elif ending is not None:
        code = ending.get("exit_code")
        known = isinstance(code, int) and not isinstance(code, bool)
        words = f"the attempt ended with exit code {code if known else EXIT_FAULT}" + (
            f": {message}" if message else ""
        )
        # What nobody told, 0 included, brought training to no end of its own.
        ended: StopKind = "end" if known and code in _NO_CRASH else "crash"
        # As a parent, or a shell, sees a process that a signal ended.
        number = next((one for one in _KIND_OF_SIGNAL if known and code in (-one, 128 + one)), None)
        if number is not None and not preemptible:
            ended, words = _KIND_OF_SIGNAL[number], f"the attempt was ended by {number.name}"
        found.append(Stop(ended, float(ending["time"]), step, place, words[:300]))
    elif not is_last:
        words = "the attempt ended without a word" + ("" if preemptible else ": killed, or out of memory")
        found.append(Stop("preemption" if preemptible else "kill", float(events[-1]["time"]), step, place, words))
    return found


def finite_seconds(seconds: object) -> dict[str, float]:
    """Return the seconds of an event by section, of those that are numbers; a damaged one counts for nothing."""
    pairs = seconds.items() if isinstance(seconds, Mapping) else ()
    return {
        str(name): float(value)
        for name, value in pairs
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST_SECONDS
    }
