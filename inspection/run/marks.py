"""What happened to a training, on its time axis: starts, checkpoints, preemptions, crashes, resumes, and its end.

Read from the events that the goodput ledger reads (contracts/goodput.py): a checkpoint is a `spent` with seconds of a
checkpoint in it, a preemption an agreed stop because of a notice, or an attempt that ended without a word before
another began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from inspection.attempts import Events
from inspection.run.data import spread
from inspection.run.view import Mark, Marks

# Of each kind: a page shows no more, and says so.
MOST_OF_A_KIND = 300


def find_marks(attempts: Mapping[str, Events], *, best_step: int | None = None) -> Marks:
    """Return what happened to a training.

    Args:
        attempts: Events of every attempt at it, by name, in the order in which they began.
        best_step: Of the best checkpoint, where it is known.
    """
    # Machines beside the first have attempts of their own, in which nothing of the training is told.
    told = [(name, events) for name, events in attempts.items() if any(event["event"] == "life" for event in events)]
    found: list[Mark] = []
    for place, (name, events) in enumerate(told):
        found += _of_attempt(name, events, is_last=place == len(told) - 1)
    found.sort(key=lambda mark: mark.time)
    if best_step:
        found += [
            Mark(kind="best", time=mark.time, step=mark.step, text=f"best checkpoint, step {best_step}")
            for mark in found
            if mark.kind == "checkpoint" and mark.step == best_step
        ][-1:]
    counts: Counter[str] = Counter(mark.kind for mark in found)
    kept = [mark for kind in counts for mark in spread([one for one in found if one.kind == kind], MOST_OF_A_KIND)]
    return Marks(marks=sorted(kept, key=lambda mark: mark.time), counts=dict(counts))


def _of_attempt(name: str, events: Events, *, is_last: bool) -> Iterable[Mark]:
    step: int | None = None
    lives = 0
    ended = preempted = False
    for event in events:
        time = float(event["time"])
        step = _step(event, step)
        match event["event"]:
            case "life":
                lives += 1
                if lives > 1:
                    yield Mark(kind="crash", time=time, step=step, text=f"ranks started again in attempt {name}")
            case "resume":
                if step:
                    machines = f"{event.get('ranks')} ranks on {event.get('nodes')} machines"
                    yield Mark(kind="resume", time=time, step=step, text=f"resumed at step {step}, {machines}")
                else:
                    yield Mark(kind="start", time=time, step=0, text=f"started in attempt {name}")
            case "spent" if _checkpoint_s(event) > 0:
                seconds = _checkpoint_s(event)
                yield Mark(kind="checkpoint", time=time, step=step, text=f"checkpoint at step {step}, {seconds:.3f} s")
            case "stop":
                preempted = preempted or bool(event.get("preempted"))
                kind: Any = "preemption" if event.get("preempted") else "end"
                yield Mark(kind=kind, time=time, step=step, text=f"stopped at step {step}: {event.get('cause', '')}")
            case "finish":
                ended = True
                yield Mark(kind="end", time=time, step=step, text=f"finished: {event.get('made', '')}"[:300])
            case "error" | "exit":
                ended = True
    if not ended and not preempted and not is_last:
        time = float(events[-1]["time"])
        yield Mark(kind="preemption", time=time, step=step, text=f"attempt {name} ended without a word")


def _step(event: Mapping[str, Any], before: int | None) -> int | None:
    value = event.get("step", event.get("done") if event.get("unit") == "steps" else None)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else before


def _checkpoint_s(event: Mapping[str, Any]) -> float:
    seconds = event.get("seconds")
    value = seconds.get("checkpoint", 0.0) if isinstance(seconds, dict) else 0.0
    return float(value) if isinstance(value, (int, float)) else 0.0
