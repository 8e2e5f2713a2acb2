"""The training of a run: its attempts, goodput, curves, and the marks on its time axis.

Curves come from the training's scalars (contracts/scalars.py). If an attempt resumed from a checkpoint, rows of
earlier attempts after that step are void and omitted. contracts/goodput.py classifies stops, as for goodput.
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
"""Classes of a training's wall time (docs/goodput.md): fields of GoodputRecord and their titles."""
# Maximum number of marks of a kind.
MOST_OF_A_KIND = 300
# Parts have a megabyte (contracts/scalars.py); each attempt has at least one.
MOST_PARTS, _PART_BYTES = 1_000, 16 << 20
# Maximum number of scalars; a training writes some twenty.
MOST_NAMES = 200
_TEXT_CHARACTERS, _MOST_PROBLEMS = 400, 20
# Maximum time between an event and the scalars of the same step.
_SLACK_S = 5.0
# End of the year 9999, the last that datetime supports.
_LATEST_TIME = 253_402_300_799.0
_STAGE = "train"
T = TypeVar("T")


def read_goodput(line: str, run_id: str | None, *, training: str = "") -> GoodputRecord | None:
    """Return the account of a training, also of one in progress or killed; None: no training.

    Arguments are those of `read_attempts`.
    """
    attempts = read_attempts(line, run_id, training=training)
    return account(attempts.values()) if attempts else None


def read_attempts(
    line: str, run_id: str | None, *, read_before: Mapping[str, Events] | None = None, training: str = ""
) -> dict[str, Events]:
    """Return the events of every attempt at a training, by the attempt's name; empty without a training.

    If the training started in this run, only its attempts are read. A training that this run continued or reused has
    attempts in other runs of the line, which takes a request each.

    Args:
        line: URI of the line's folder.
        run_id: The run with the training; None: the newest run with one.
        read_before: Events that were already read, by the attempt's name.
        training: Fingerprint of the training of a run without attempts, from KFP's cache.
    """
    names = list_attempts(line, _STAGE)
    events: dict[str, Events] = dict(read_before or {})

    def read(selected: list[str]) -> None:
        events.update(read_events(line, _STAGE, [name for name in selected if name not in events])[0])

    if run_id is None:
        read(names)
        run_id = next((name for name in reversed(names) if _training_of(events[name])), "").partition(".")[0]
    selected = [name for name in names if is_of_run(name, run_id)]
    read(selected)
    chosen = next((name for each in reversed(selected) if (name := _training_of(events[each]))), training)
    if not chosen:
        return {}
    # Whether the first attempt is in this run; an attempt at step 0 may follow others that saved nothing.
    if not any(
        event["event"] == "resume" and event.get("number") == 1
        for name in selected
        if _training_of(events[name]) == chosen
        for event in events[name]
    ):
        selected = names
        read(names)
    return {name: events[name] for name in selected if _training_of(events[name]) == chosen}


def _training_of(events: Events) -> str:
    """Return the fingerprint of the training of an attempt; empty if it ended earlier."""
    return next((str(event.get("fingerprint", "")) for event in events if event.get("event") == "folder"), "")


def find_marks(attempts: Mapping[str, Events], *, best_step: int | None = None) -> list[Mark]:
    """Return starts, checkpoints, stops, resumes and the end of a training, in the order of time.

    Args:
        attempts: Events of every attempt at it, by name, in the order of their start.
        best_step: Step of the best checkpoint, if known.
    """
    names, marks = list(attempts), []
    for name, events in attempts.items():
        # Attempts of machines other than the first have no events of the training.
        if tells_of_training(events):
            marks += [mark for event in events if (mark := _mark_of(name, event)) is not None]
    for stop in find_stops(list(attempts.values())):
        text = f"{stop.words} (attempt {names[stop.attempt]})"[:_TEXT_CHARACTERS]
        marks.append(Mark(kind=stop.kind, time=stop.time, step=stop.step, text=text))
    saved = [mark for mark in marks if mark.kind == "checkpoint" and mark.step == best_step]
    if best_step and saved:
        marks.append(Mark(kind="best", time=saved[-1].time, step=best_step, text=f"best checkpoint, step {best_step}"))
    kinds = dict.fromkeys(mark.kind for mark in marks)
    chosen = [each for kind in kinds for each in evenly([mark for mark in marks if mark.kind == kind], MOST_OF_A_KIND)]
    return sorted(chosen, key=lambda mark: mark.time)


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
    """Rows of scalars; values are stored row by row."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _Part:
    """One file of scalars: rows by the names in them."""

    rows: dict[tuple[str, ...], _Rows] = field(default_factory=dict)
    start: int | None = None
    """Step from which an attempt that starts in this file resumed; None: no attempt starts."""
    damaged: int = 0


def read_curves(folder_uri: str, *, points: int = 400, until: float | None = None) -> tuple[list[Curve], list[str]]:
    """Return the curves of a training, and the problems of reading as text.

    Args:
        folder_uri: Its scalars/, local or in a bucket; it need not exist.
        points: Maximum number of rows of a curve, at least 4; first, last and extreme values are included.
        until: Time of the run's last event, since another run may have continued the training.
    """
    parts, problems = _read_parts(folder_uri)
    columns: dict[str, list[_Rows]] = {}
    void_beyond: int | None = None
    for part in reversed(parts):
        for names, rows in part.rows.items():
            valid = _before(rows, len(names), void_beyond, until)
            for column, name in enumerate(names):
                columns.setdefault(name, []).append(_Rows(valid.steps, valid.times, valid.values[column :: len(names)]))
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
    """Return the rows of complete lines, parsed at once for speed, or one by one if a line is damaged."""
    part = _Part()
    # The last line may be incomplete.
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
            # NaN and infinities are strings; scalar_of returns None for other values, which raises again.
            del rows.values[values:]
            rows.values.extend(map(scalar_of, scalars.values()))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        del rows.steps[count:], rows.times[count:], rows.values[values:]
        raise


def _before(rows: _Rows, width: int, step: int | None, time: float | None) -> _Rows:
    """Return the rows up to a step and a time; None: no limit."""
    latest_time = math.inf if time is None else time + _SLACK_S
    if not rows.steps:
        return rows
    if (step is None or max(rows.steps) <= step) and max(rows.times) <= latest_time:
        return rows
    valid = _Rows()
    for place, (at, when) in enumerate(zip(rows.steps, rows.times, strict=True)):
        if (step is None or at <= step) and when <= latest_time:
            valid.steps.append(at)
            valid.times.append(when)
            valid.values.extend(rows.values[place * width : (place + 1) * width])
    return valid


def _draw(name: str, parts: Sequence[_Rows], points: int) -> Curve:
    """Return the curve of a scalar from its parts in temporal order."""
    steps, times, values = array("q"), array("d"), array("d")
    for part in parts:
        steps += part.steps
        times += part.times
        values += part.values
    not_finite: list[int] = []
    # A finite sum has only finite values, the usual case.
    clean = all(map(math.isfinite, (sum(values), sum(times)))) and min(times, default=0) >= 0
    clean = clean and max(times, default=0) <= _LATEST_TIME
    if not (clean and all(map(le, steps, steps[1:]))):
        not_finite = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
        rows = zip(steps, times, values, strict=True)
        valid = [row for row in rows if math.isfinite(row[2]) and 0 <= row[1] <= _LATEST_TIME]
        valid.sort(key=lambda row: row[0])
        steps, times, values = (array(kind, [row[at] for row in valid]) for at, kind in enumerate("qdd"))  # type: ignore
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

    These are the first and the last, and the minimum and the maximum of equally long pieces between them (the first of
    equal values), so that a peak of one row stays visible.
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
