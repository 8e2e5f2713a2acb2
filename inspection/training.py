"""The training of a run: its attempts, goodput, curves, and the marks on its time axis.

Curves come from the training's scalars (contracts/scalars.py). Where an attempt went on from a checkpoint, rows that
earlier attempts wrote beyond that step are void and left out. How a training came to stand still is found by
contracts/goodput.py, as in the account of its time.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import le
from typing import Any, TypeVar

from pydantic_core import from_json

from contracts import storage
from contracts.artifacts import GoodputRecord
from contracts.errors import ShardlineError
from contracts.goodput import account, find_stops, finite_seconds, step_after, tells_of_training
from contracts.scalars import PART_NAME, scalar_of
from inspection.documents import first_line, read_small
from inspection.find import THREADS
from inspection.stages import Events, is_of_run, list_attempts, read_events
from inspection.view import Curve, Mark

TENSORBOARD_FOLDER = "tensorboard"
TIME_CLASSES = {
    "productive_s": "productive",
    "start_up_s": "start-up",
    "data_wait_s": "data wait",
    "checkpoint_s": "checkpoint stall",
    "evaluation_s": "evaluation",
    "lost_s": "lost and repeated",
    "recovery_s": "recovery",
    "stop_s": "stop",
}
"""Classes of a training's wall time (docs/goodput.md) in the order of its life: fields of GoodputRecord, in words."""
# A page shows no more marks of a kind.
MOST_OF_A_KIND = 300
# Parts have a megabyte (contracts/scalars.py); an attempt has one at least.
MOST_PARTS, _PART_BYTES = 1_000, 16 << 20
# Scalars of a training; it writes some twenty.
MOST_NAMES = 200
_TEXT_CHARACTERS, _MOST_PROBLEMS = 400, 20
# Between an event and the scalars of the same step.
_SLACK_S = 5.0
# The years 1970 to 9999, in seconds: a calendar has no others.
_LATEST_TIME = 253_402_300_799.0
_STAGE = "train"
T = TypeVar("T")


def read_goodput(line: str, run_id: str | None, *, training: str = "") -> GoodputRecord | None:
    """Return the account of a training, also of one that goes on or was killed; None: there was none.

    Arguments are those of `read_attempts`.
    """
    attempts = read_attempts(line, run_id, training=training)
    return account(attempts.values()) if attempts else None


def read_attempts(
    line: str, run_id: str | None, *, known: Mapping[str, Events] | None = None, training: str = ""
) -> dict[str, Events]:
    """Return the events of every attempt at a training, by the attempt's name; none when there was no training.

    Of a training that began in this run, only this run's attempts are read. One that this run has continued or reused
    has attempts in other runs of the line: a request for each.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest run that has one.
        known: Events that were read before, by the attempt's name.
        training: Fingerprint of the training that a run without attempts used: KFP's cache had it.
    """
    names = list_attempts(line, _STAGE)
    events: dict[str, Events] = dict(known or {})

    def read(wanted: list[str]) -> None:
        events.update(read_events(line, _STAGE, [name for name in wanted if name not in events])[0])

    if run_id is None:
        read(names)
        run_id = next((name for name in reversed(names) if _training_of(events[name])), "").partition(".")[0]
    wanted = [name for name in names if is_of_run(name, run_id)]
    read(wanted)
    chosen = next((name for each in reversed(wanted) if (name := _training_of(events[each]))), training)
    if not chosen:
        return {}
    # The first attempt at a training; one at step 0 may follow others that saved nothing.
    if not any(
        event["event"] == "resume" and event.get("number") == 1
        for name in wanted
        if _training_of(events[name]) == chosen
        for event in events[name]
    ):
        wanted = names
        read(names)
    return {name: events[name] for name in wanted if _training_of(events[name]) == chosen}


def _training_of(events: Events) -> str:
    """Return the fingerprint of the training that an attempt worked on; empty: it did not come to that."""
    return next((str(event.get("fingerprint", "")) for event in events if event.get("event") == "folder"), "")


def find_marks(attempts: Mapping[str, Events], *, best_step: int | None = None) -> list[Mark]:
    """Return starts, checkpoints, stops, resumes and the end of a training, in the order of time.

    Args:
        attempts: Events of every attempt at it, by name, in the order in which they began.
        best_step: Of the best checkpoint, where it is known.
    """
    names, marks = list(attempts), []
    for name, events in attempts.items():
        # Machines beside the first have attempts of their own, in which nothing of the training is told.
        if tells_of_training(events):
            marks += [mark for event in events if (mark := _mark_of(name, event)) is not None]
    for stop in find_stops(list(attempts.values())):
        text = f"{stop.words} (attempt {names[stop.attempt]})"[:_TEXT_CHARACTERS]
        marks.append(Mark(kind=stop.kind, time=stop.time, step=stop.step, text=text))
    saved = [mark for mark in marks if mark.kind == "checkpoint" and mark.step == best_step]
    if best_step and saved:
        marks.append(Mark(kind="best", time=saved[-1].time, step=best_step, text=f"best checkpoint, step {best_step}"))
    kinds = dict.fromkeys(mark.kind for mark in marks)
    kept = [mark for kind in kinds for mark in evenly([one for one in marks if one.kind == kind], MOST_OF_A_KIND)]
    return sorted(kept, key=lambda mark: mark.time)


def _mark_of(attempt: str, event: Mapping[str, Any]) -> Mark | None:
    time, step = float(event["time"]), step_after(event, None)
    if event["event"] == "checkpoint":
        seconds = finite_seconds({"whole": event.get("seconds")}).get("whole")
        durable = f", durable after {seconds:.3f} s" if seconds is not None else ""
        return Mark(kind="checkpoint", time=time, step=step, text=f"checkpoint at step {step}{durable}")
    if event["event"] != "resume":
        return None
    if not step:
        return Mark(kind="start", time=time, step=0, text=f"started in attempt {attempt}")
    machines = f"{event.get('ranks')} ranks on {event.get('nodes')} machines"[:_TEXT_CHARACTERS]
    return Mark(kind="resume", time=time, step=step, text=f"resumed at step {step}, {machines}")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items (two or more), evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


@dataclass
class _Rows:
    """Rows of scalars; values of a row lie one behind the other."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _Part:
    """One file of scalars: rows by the names in them."""

    rows: dict[tuple[str, ...], _Rows] = field(default_factory=dict)
    start: int | None = None
    """Step that an attempt which began in this file went on from; None: none began."""
    damaged: int = 0


def read_curves(folder_uri: str, *, points: int = 400, until: float | None = None) -> tuple[list[Curve], list[str]]:
    """Return the curves of a training, and what could not be read, in words.

    Args:
        folder_uri: Its scalars/, local or in a bucket; it need not be there yet.
        points: Most rows of a curve, at least 4; the first, the last, and the extremes between are among them.
        until: Time of the run's last event: another run of the line may have gone on with the same training.
    """
    parts, problems = _read_parts(folder_uri)
    columns: dict[str, list[_Rows]] = {}
    void_beyond: int | None = None
    for part in reversed(parts):
        for names, rows in part.rows.items():
            kept = _before(rows, len(names), void_beyond, until)
            for column, name in enumerate(names):
                columns.setdefault(name, []).append(_Rows(kept.steps, kept.times, kept.values[column :: len(names)]))
        if part.start is not None:
            void_beyond = part.start if void_beyond is None else min(void_beyond, part.start)
    if len(columns) > MOST_NAMES:
        problems.append(f"{len(columns) - MOST_NAMES} of {len(columns)} scalars are left out")
    curves = [_draw(name, columns[name][::-1], points) for name in sorted(columns)[:MOST_NAMES]]
    more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
    return [curve for curve in curves if curve.rows or curve.not_finite], problems[:_MOST_PROBLEMS] + more


def _read_parts(folder_uri: str) -> tuple[list[_Part], list[str]]:
    try:
        names = sorted(name for name in storage.list_names(folder_uri) if PART_NAME.fullmatch(name))
    except (ShardlineError, OSError) as error:
        return [], [f"the scalars cannot be listed: {first_line(error)}"]
    problems: list[str] = []
    if len(names) > MOST_PARTS:
        problems.append(f"{len(names) - MOST_PARTS} of {len(names)} parts are left out, the oldest")
        names = names[-MOST_PARTS:]

    def read(name: str) -> _Part:
        try:
            part = _parse_part(read_small(storage.join(folder_uri, name), _PART_BYTES))
        except (ShardlineError, OSError, ValueError) as error:
            problems.append(f"{name} cannot be read: {first_line(error)}")
            return _Part()
        if part.damaged:
            problems.append(f"{name}: {part.damaged} damaged lines are left out")
        return part

    with ThreadPoolExecutor(1 if storage.is_local(folder_uri) else THREADS) as pool:
        return list(pool.map(read, names)), problems


def _parse_part(content: bytes) -> _Part:
    """Return the rows of whole lines: parsed all at once, which is faster; one by one where one of them is damaged."""
    part = _Part()
    # The last line may not be whole yet.
    text = content[: content.rfind(b"\n") + 1].rstrip(b"\n")
    lines: Iterable[Any]
    try:
        lines = from_json(b"[" + text.replace(b"\n", b",") + b"]", cache_strings="keys")
    except ValueError:
        lines = map(_parse_line, text.split(b"\n"))
    for line in lines:
        try:
            if "start" in line:
                start = operator.index(line["start"])
                part.start = start if part.start is None else min(start, part.start)
                continue
            scalars: dict[str, Any] = line["scalars"]
            rows = part.rows.get(names := tuple(scalars.keys()))
            if rows is None:
                rows = part.rows.setdefault(names, _Rows())
            _add_row(rows, line["step"], line["time"], scalars)
        except (TypeError, KeyError, AttributeError, OverflowError, ValueError):
            part.damaged += 1
    return part


def _parse_line(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def _add_row(rows: _Rows, step: int, time: float, scalars: Mapping[str, Any]) -> None:
    count, values = len(rows.steps), len(rows.values)
    try:
        rows.steps.append(step)
        rows.times.append(time)
        try:
            rows.values.extend(scalars.values())
        except TypeError:
            # NaN and infinities are words; None, for anything else, raises again.
            del rows.values[values:]
            rows.values.extend(map(scalar_of, scalars.values()))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        del rows.steps[count:], rows.times[count:], rows.values[values:]
        raise


def _before(rows: _Rows, width: int, step: int | None, time: float | None) -> _Rows:
    """Return the rows up to a step and a time, where they are given."""
    latest_time = math.inf if time is None else time + _SLACK_S
    if not rows.steps:
        return rows
    if (step is None or max(rows.steps) <= step) and max(rows.times) <= latest_time:
        return rows
    kept = _Rows()
    for place, (at, when) in enumerate(zip(rows.steps, rows.times, strict=True)):
        if (step is None or at <= step) and when <= latest_time:
            kept.steps.append(at)
            kept.times.append(when)
            kept.values.extend(rows.values[place * width : (place + 1) * width])
    return kept


def _draw(name: str, parts: Sequence[_Rows], points: int) -> Curve:
    """Return the curve of a scalar; its parts are in the order of time."""
    steps, times, values = array("q"), array("d"), array("d")
    for part in parts:
        steps += part.steps
        times += part.times
        values += part.values
    not_finite: list[int] = []
    # A sum is finite if all of its values are: almost always there is nothing to look for.
    clean = all(map(math.isfinite, (sum(values), sum(times)))) and min(times, default=0) >= 0
    clean = clean and max(times, default=0) <= _LATEST_TIME
    if not (clean and all(map(le, steps, steps[1:]))):
        not_finite = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
        rows = zip(steps, times, values, strict=True)
        kept = [row for row in rows if math.isfinite(row[2]) and 0 <= row[1] <= _LATEST_TIME]
        kept.sort(key=lambda row: row[0])
        steps, times, values = (array(kind, [row[at] for row in kept]) for at, kind in enumerate("qdd"))  # type: ignore
    places = thin(values, points)
    return Curve(
        name=name,
        steps=[steps[place] for place in places],
        times=[times[place] for place in places],
        values=[values[place] for place in places],
        rows=len(steps),
        not_finite=len(not_finite),
        first_not_finite=min(not_finite, default=None),
    )


def thin(values: Sequence[float], points: int) -> list[int]:
    """Return the places of the values to draw, rising: all, or `points` of them at most.

    The first and the last are among them, and of each of some equally long pieces between, the smallest and the largest
    value (of equal ones the first): a peak of one row is seen.
    """
    length = len(values)
    if length <= points:
        return list(range(length))
    pieces = (points - 2) // 2
    chosen = {0, length - 1}
    for piece in range(pieces):
        start = 1 + (length - 2) * piece // pieces
        part = values[start : 1 + (length - 2) * (piece + 1) // pieces]
        chosen |= {start + part.index(min(part)), start + part.index(max(part))}
    return sorted(chosen)
