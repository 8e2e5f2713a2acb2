"""What the stages of a run did: from its record where there is one, else from their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contracts import storage
from contracts.artifacts import RunRecord, StageRecord
from contracts.errors import ErrorDocument
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME, LOG_NAME
from contracts.process import ASKS_AGAIN
from inspection.attempts import Events
from inspection.run.door import HARM, SMALL_BYTES, Door, as_number, parse_json
from inspection.run.find import RunPlace
from inspection.run.view import AttemptView, ProgressView, StageState, StageView

# Messages are shown whole up to this; a stage's errors are some lines.
MOST_CHARACTERS = 4000
# Of very many attempts, the first and the last ones.
MOST_ATTEMPTS = 100
_NOT_DONE = ("failed", "interrupted", "stopped")
# Events whose message a log has too, and how many stand for a log that is elsewhere.
_SAYING, SAID_LINES, MOST_LETTERS = ("log", "error"), 20, 400


def read_stage(
    place: RunPlace,
    name: str,
    attempts: Mapping[str, Events],
    *,
    record: RunRecord | None,
    over: bool,
    located: Callable[[str], str],
    door: Door,
    now: float | None = None,
    taken: str = "",
) -> StageView:
    """Return what a stage did for a run.

    Args:
        place: The run.
        name: Of the stage.
        attempts: Events of the run's attempts at it, in the order in which they began.
        record: The run's record, if there is one.
        over: Whether nothing of the run works any more.
        located: Turns a URI that a document names into where that is now.
        door: Reads files of the line.
        now: Until when a stage that runs has run; None: until its last word.
        taken: Folder that later stages of the run have taken as its output; empty: none has begun.
    """
    recorded = next((stage for stage in record.stages if stage.name == name), None) if record else None
    told = [event for events in attempts.values() for event in events]
    told.sort(key=lambda event: float(event["time"]))
    shown = [*attempts][: MOST_ATTEMPTS // 2] + [*attempts][MOST_ATTEMPTS // 2 :][-MOST_ATTEMPTS // 2 :]
    views = [_attempt(door, place, name, attempt, attempts[attempt]) for attempt in shown]
    if views and views[-1].log is None:
        said = [str(event.get("message", "")) for event in attempts[shown[-1]] if event["event"] in _SAYING]
        views[-1] = views[-1].model_copy(update={"said": "\n".join(each[:MOST_LETTERS] for each in said[-SAID_LINES:])})
    state = _state(recorded, told, views, over=over)
    ended = [view for view in views if view.error]
    uri, made = _outcome(recorded, told)
    if recorded is None and not views and taken:
        # KFP has it in its cache.
        state, uri, made = "reused", taken, "reused"
    return StageView(
        name=name,
        state=state,
        started_at=min((view.started_at for view in views if view.started_at is not None), default=None),
        wall_s=recorded.wall_s
        if recorded and state != "not started"
        else _wall_s(views, now if state == "running" else None),
        start_s=recorded.start_s if recorded and state != "not started" else None,
        made=made if state in ("done", "reused") else "",
        uri=located(uri) if uri else None,
        manifest_sha256=recorded.manifest_sha256 if recorded else None,
        error=ended[-1].error if ended and state in (*_NOT_DONE, "running") else "",
        progress=_progress(told) if state in (*_NOT_DONE, "running") else None,
        attempts=views,
    )


def _outcome(recorded: StageRecord | None, told: Events) -> tuple[str, str]:
    """Return the URI of what the stage made, as a document names it, and what it is in words."""
    uri, made = "", ""
    for event in told:
        if event["event"] == "finish":
            uri, made = str(event.get("uri", "")), str(event.get("made", ""))
        elif event["event"] == "reused":
            uri, made = str(event.get("uri", "")), "reused"
    if recorded is not None:
        uri, made = recorded.uri or "", recorded.made
    return uri, made[:MOST_CHARACTERS]


def _state(recorded: StageRecord | None, told: Events, views: list[AttemptView], *, over: bool) -> StageState:
    if recorded is not None:
        return recorded.state
    kinds = [event["event"] for event in told]
    if "finish" in kinds or "reused" in kinds:
        return "reused" if "finish" not in kinds else "done"
    if not views:
        return "not started" if over else "waiting"
    last = views[-1]
    if over and "interrupted" in kinds:
        return "interrupted"
    if last.exit_code not in (None, 0, *ASKS_AGAIN) or (over and last.exit_code in ASKS_AGAIN):
        return "failed"
    return "stopped" if over else "running"


def _attempt(door: Door, place: RunPlace, stage: str, name: str, events: Events) -> AttemptView:
    folder = storage.join(place.line, stage, ATTEMPTS_FOLDER, name)
    times = [float(event["time"]) for event in events]
    error, exit_code = _find_error(door, events, storage.join(folder, ERROR_NAME))
    ended_at = times[-1] if times else None
    for event in events:
        if event["event"] == "exit":
            exit_code = _integer(event.get("exit_code"), exit_code)
        elif event["event"] in ("finish", "reused") and exit_code is None:
            exit_code = 0
    log = storage.join(folder, LOG_NAME)
    is_here = storage.is_local(log) and storage.exists(log)
    return AttemptView(
        name=name,
        started_at=times[0] if times else None,
        ended_at=ended_at,
        exit_code=exit_code,
        error=error if exit_code != 0 else "",
        folder=folder,
        log=log if is_here else None,
    )


def _find_error(door: Door, events: Events, uri: str) -> tuple[str, int | None]:
    """Return why an attempt ended: what it told, else what stands in its error document."""
    for event in reversed(events):
        if event["event"] == "error":
            return str(event.get("message", ""))[:MOST_CHARACTERS], _integer(event.get("exit_code"), 70)
    if not any(event["event"] == "exit" and event.get("exit_code") != 0 for event in events):
        return "", None
    try:
        found = ErrorDocument.model_validate(parse_json(door.read(uri, SMALL_BYTES)))
    except HARM:
        return "it ended without a word; see its log", None
    return found.message[:MOST_CHARACTERS], found.exit_code


def _progress(told: Events) -> ProgressView | None:
    for event in reversed(told):
        if event["event"] == "progress":
            done, total = as_number(event.get("done")), as_number(event.get("total"))
            if done is None or total is None:
                continue
            return ProgressView(
                done=done,
                total=total,
                unit=str(event.get("unit", ""))[:40],
                message=str(event.get("message", ""))[:MOST_CHARACTERS],
                at=float(event["time"]),
            )
    return None


def _wall_s(views: list[AttemptView], now: float | None) -> float | None:
    started = [view.started_at for view in views if view.started_at is not None]
    ended = [view.ended_at for view in views if view.ended_at is not None]
    return round((max(ended) if now is None else now) - min(started), 3) if started and ended else None


def _integer(value: Any, other: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else other
