"""What happened to a training, on its time axis: starts, checkpoints, preemptions, crashes, resumes, and its end.

How it came to stand still is found by contracts/goodput.py, as in the account of its time. A checkpoint is an event
`checkpoint`; attempts of versions that do not tell it have a mark where a `spent` holds seconds of a checkpoint, and at
an agreed stop, which saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from contracts.goodput import Event, find_stops, finite_seconds, step_after, tells_of_training
from inspection.attempts import Events
from inspection.run.data import evenly
from inspection.run.view import Mark, Marks

# Of each kind: a page shows no more, and says so.
MOST_OF_A_KIND = 300
MOST_CHARACTERS = 400


def find_marks(attempts: Mapping[str, Events], *, best_step: int | None = None) -> Marks:
    """Return what happened to a training.

    Args:
        attempts: Events of every attempt at it, by name, in the order in which they began.
        best_step: Of the best checkpoint, where it is known.
    """
    found: list[Mark] = []
    for name, events in attempts.items():
        # Machines beside the first have attempts of their own, in which nothing of the training is told.
        if tells_of_training(events):
            found += _starts(name, events)
            told = _told_checkpoints(events) if _tells_checkpoints(events) else _guessed_checkpoints(events)
            found += told
    names = list(attempts)
    for stop in find_stops(list(attempts.values())):
        text = f"{stop.words} (attempt {names[stop.attempt]})"[:MOST_CHARACTERS]
        found.append(Mark(kind=stop.kind, time=stop.time, step=stop.step, text=text))
    found.sort(key=lambda mark: mark.time)
    if best_step:
        found += [
            Mark(kind="best", time=mark.time, step=mark.step, text=f"best checkpoint, step {best_step}")
            for mark in found
            if mark.kind == "checkpoint" and mark.step == best_step
        ][-1:]
    counts: Counter[str] = Counter(mark.kind for mark in found)
    kept = [mark for kind in counts for mark in evenly([one for one in found if one.kind == kind], MOST_OF_A_KIND)]
    return Marks(marks=sorted(kept, key=lambda mark: mark.time), counts=dict(counts))


def _starts(name: str, events: Events) -> Iterable[Mark]:
    for event in events:
        if event["event"] == "resume":
            step, time = step_after(event, None), float(event["time"])
            if step:
                machines = f"{event.get('ranks')} ranks on {event.get('nodes')} machines"[:MOST_CHARACTERS]
                yield Mark(kind="resume", time=time, step=step, text=f"resumed at step {step}, {machines}")
            else:
                yield Mark(kind="start", time=time, step=0, text=f"started in attempt {name}")


def _tells_checkpoints(events: Events) -> bool:
    kinds = [event["event"] for event in events]
    tells = [event.get("tells") for event in events if event["event"] == "life"]
    return "checkpoint" in kinds or any(isinstance(words, list) and "checkpoint" in words for words in tells)


def _told_checkpoints(events: Events) -> Iterable[Mark]:
    for event in events:
        if event["event"] == "checkpoint":
            step = step_after(event, None)
            seconds = finite_seconds({"whole": event.get("seconds")}).get("whole")
            took = f", durable after {seconds:.3f} s" if seconds is not None else ""
            yield Mark(kind="checkpoint", time=float(event["time"]), step=step, text=f"checkpoint at step {step}{took}")


def _guessed_checkpoints(events: Events) -> Iterable[Mark]:
    step: int | None = None
    # Of the ranks that are up: a wait at the end for one that is being written is no second one.
    marked: set[int | None] = set()
    for event in events:
        step = step_after(event, step)
        if event["event"] == "life":
            marked = set()
        words = _guess(event)
        if words and step not in marked:
            marked.add(step)
            yield Mark(
                kind="checkpoint", time=float(event["time"]), step=step, text=f"checkpoint at step {step}{words}"
            )


def _guess(event: Event) -> str:
    if event["event"] == "stop":
        return ", saved at the agreed stop"
    seconds = finite_seconds(event.get("seconds")).get("checkpoint", 0.0) if event["event"] == "spent" else 0.0
    return f", {seconds:.3f} s" if seconds > 0 else ""
