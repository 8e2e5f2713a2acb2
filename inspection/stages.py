"""Stages and small tasks of a run: events of their attempts, errors, outputs, and the states of stage and run.

`StageTrace` is the state machine of a stage: `shardline run` applies events while the stage runs, and readers apply the
stored events of attempts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import RunRecord, ShardManifest, StageRecord
from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, DataError, ErrorDocument
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME, EVENTS_NAME, LOG_NAME, EventReader
from contracts.output import is_locked
from contracts.previous import RUN_NAME
from contracts.process import ASKS_AGAIN
from contracts.result import run_uri
from inspection.documents import READ_ERRORS, as_number, first_line, read_small
from inspection.find import THREADS, RunPlace
from inspection.view import Attempt, Progress, StageState, StageView, State

Event = Mapping[str, Any]
Events = list[dict[str, Any]]
ERRORS_FOLDER = "errors"
"""Folder in a run for errors of tasks without attempts, TASK.json."""
MOST_CHARACTERS = 4000
# The last attempts are shown.
MOST_ATTEMPTS = 50
# Of events per attempt, at some hundred bytes each.
MOST_BYTES = 32 << 20
# A running stage copies its events every 30 s; a run that waits for machines has none.
SILENT_S = 600.0
# After this time without events a run was cancelled or lost.
UNKNOWN_S = 86_400.0
# Attempts of other runs to search for the producer of a reused output.
_MOST_PRODUCERS = 200
_LAST_MESSAGES, _MESSAGE_CHARACTERS = 20, 400


@dataclass
class StageTrace:
    """A stage by its events, of one attempt or several. Times are seconds since the epoch."""

    name: str
    folder: Path = Path()
    """Folder of the followed attempt's events, error and log."""
    launched_at: float | None = None
    ready_at: float | None = None
    last_at: float = 0.0
    uri: str | None = None
    """Folder of the finished output."""
    made: str = ""
    reused: bool = False
    exit_code: int | None = None
    error: str = ""
    interrupted: bool = False
    """A user's signal ended it."""
    progress: Progress | None = None
    _reader: EventReader | None = field(default=None, repr=False)

    def poll(self) -> Iterator[Event]:
        """Apply the events written since the last call, and yield them."""
        if self._reader is None:
            self._reader = EventReader(self.folder / EVENTS_NAME)
        for event in self._reader.poll():
            self.apply(event)
            yield event

    def apply(self, event: Event) -> None:
        """Update the state by one event."""
        time = as_number(event.get("time")) or self.last_at
        self.last_at = max(self.last_at, time)
        launched_at = as_number(event.get("launched_at"))
        self.launched_at = min(self.launched_at or time, time if launched_at is None else launched_at)
        match event["event"]:
            case "start":
                self.exit_code, self.error, self.interrupted = None, "", False
            case "ready" if self.ready_at is None:
                self.ready_at = time
            case "progress":
                self.progress = _progress_of(event, time) or self.progress
            case "reused":
                # A later attempt may reuse the output of an earlier attempt of the same run.
                self.reused = self.reused or not self.uri
                self.uri, self.exit_code, self.error = str(event.get("uri", "")), None, ""
            case "finish":
                # Overrides an earlier error of another machine.
                self.exit_code, self.error = None, ""
                self.uri, self.made, self.reused = str(event.get("uri", "")), str(event.get("made", "")), False
            case "interrupted":
                self.interrupted = True
            case "error" if not self.uri:
                # A later error of another machine is ignored.
                self.error = str(event.get("message", ""))[:MOST_CHARACTERS]
                self.exit_code = _integer(event.get("exit_code"), EXIT_FAULT)
            case "exit":
                self.exit_code = _integer(event.get("exit_code"), self.exit_code)

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self.launched_at is not None

    @property
    def finished(self) -> bool:
        """Whether its output is complete, and no process has failed since."""
        return bool(self.uri) and self.exit_code in (None, 0)

    @property
    def wall_s(self) -> float:
        """Time from its first start to its last event."""
        return max(0.0, self.last_at - self.launched_at) if self.launched_at is not None else 0.0

    @property
    def start_s(self) -> float:
        """Duration of process start and imports; for a reused stage the whole time."""
        if self.launched_at is not None and self.ready_at is not None:
            return max(0.0, self.ready_at - self.launched_at)
        return self.wall_s if self.reused else 0.0

    @property
    def summary(self) -> str:
        """Summary of its output."""
        return "reused" if self.reused else self.made

    def state(self, *, over: bool) -> StageState:
        """Return the state of the stage; `over`: no process of the run is alive."""
        if self.finished:
            return "reused" if self.reused else "done"
        if not self.started:
            return "not started" if over else "waiting"
        if over and self.interrupted:
            return "interrupted"
        if self.exit_code not in (None, 0) and (over or self.exit_code not in ASKS_AGAIN):
            return "failed"
        return "stopped" if over else "running"

    def record(self, manifest_sha256: str | None) -> StageRecord:
        """Return the stage's part of the run's record."""
        state = self.state(over=True)
        return StageRecord(
            name=self.name,
            state="failed" if state == "stopped" else state,  # type: ignore[arg-type]
            wall_s=round(self.wall_s, 3),
            start_s=round(self.start_s, 3),
            uri=self.uri if self.finished else None,
            manifest_sha256=manifest_sha256,
            made=self.summary if self.finished else "",
        )

    def find_error(self) -> ErrorDocument | None:
        """Return the error of the followed attempt, from error.json or its exit code; None: it did not fail."""
        if self.exit_code == 0:
            return None
        # A full disk may have truncated it.
        with suppress(FileNotFoundError, ValidationError):
            return ErrorDocument.model_validate_json((self.folder / ERROR_NAME).read_bytes())
        if self.exit_code is None:
            return None
        log = self.folder / LOG_NAME
        if self.exit_code < 0:
            cause = f"was ended by signal {-self.exit_code}" + (" (out of memory?)" if self.exit_code == -9 else "")
            message = f"{cause}\n  to do: run the same command again; its messages are in {log}"
            return ErrorDocument(kind="Signal", exit_code=EXIT_TRY_AGAIN, message=message)
        message = f"ended with exit code {self.exit_code} without {ERROR_NAME}\n  to do: see {log}"
        return ErrorDocument(kind="Crash", exit_code=EXIT_FAULT, message=message)


def find_state(place: RunPlace, recorded: State | None, *, last_event_at: float | None, now: float) -> State:
    """Return the state of a run.

    Without a record, a local run is alive if its lock is held, which the kernel releases with the process. A run in a
    bucket is judged by its newest event.

    Args:
        place: Place of the run.
        recorded: State in its record; None without a record.
        last_event_at: Its newest event, or its start, in seconds since the epoch.
        now: Current time on the same clock.
    """
    if recorded is not None:
        return recorded
    locked = is_locked(place.folder) if storage.is_local(place.folder) else None
    if locked is not None:
        return "running" if locked else "stopped"
    silent_s = now - last_event_at if last_event_at is not None else UNKNOWN_S
    return "unknown" if silent_s >= UNKNOWN_S else "silent" if silent_s >= SILENT_S else "running"


def list_attempts(line: str, stage: str, run_id: str | None = None) -> list[str]:
    """Return the names of a stage's attempts of a run or of all runs, in the order of their start."""
    names = storage.list_names(storage.join(line, stage, ATTEMPTS_FOLDER))
    return [name for name in names if not name.startswith(".") and (run_id is None or is_of_run(name, run_id))]


def is_of_run(attempt: str, run_id: str) -> bool:
    """Return whether an attempt is a run's, by its name: RUN or RUN.TIME."""
    return attempt == run_id or attempt.startswith(f"{run_id}.")


def read_events(line: str, stage: str, names: Iterable[str]) -> tuple[dict[str, Events], list[str]]:
    """Return the events of attempts by the attempt's name, and the problems as text."""
    names = list(names)
    problems: list[str] = []

    def read(name: str) -> Events:
        try:
            return _read_events(storage.join(line, stage, ATTEMPTS_FOLDER, name, EVENTS_NAME), problems)
        except FileNotFoundError:
            return []
        except READ_ERRORS as error:
            problems.append(f"events of attempt {name}: {first_line(error)}")
            return []

    with ThreadPoolExecutor(1 if storage.is_local(line) else THREADS) as pool:
        return dict(zip(names, pool.map(read, names), strict=True)), problems


def _read_events(uri: str, problems: list[str]) -> Events:
    size = storage.info(uri).size
    parts = [storage.read_range(uri, 0, min(size, MOST_BYTES))]
    if size > MOST_BYTES:
        problems.append(f"{storage.display(uri)} has {size} bytes: the middle of it was not read")
        parts = [parts[0][: MOST_BYTES // 4], storage.read_range(uri, size - MOST_BYTES * 3 // 4, MOST_BYTES)]
    events: Events = []
    damaged = 0
    for text in (text for part in parts for text in part.split(b"\n") if text.strip()):
        event = None
        with suppress(ValueError, RecursionError):
            event = json.loads(text)
        if isinstance(event, dict) and isinstance(event.get("event"), str) and as_number(event.get("time")) is not None:
            events.append(event)
        else:
            damaged += 1
    # A killed process may leave one incomplete line.
    if damaged > len(parts):
        problems.append(f"{storage.display(uri)}: {damaged} lines are not events")
    return events


def in_order(attempts: Mapping[str, Events]) -> Events:
    """Return the events of all attempts in the order of time."""
    return sorted((event for events in attempts.values() for event in events), key=lambda event: float(event["time"]))


def read_stage(
    place: RunPlace,
    name: str,
    attempts: Mapping[str, Events],
    *,
    recorded: StageRecord | None,
    over: bool,
    now: float | None = None,
    cached_uri: str = "",
) -> StageView:
    """Return a stage of a run.

    Args:
        place: The run.
        name: Of the stage.
        attempts: Events of the run's attempts at it, in the order in which they began.
        recorded: The stage in the run's record.
        over: Whether no process of the run is alive.
        now: End of the time of a stage that runs; None: its last event.
        cached_uri: Input folder of later stages that this stage produced, from KFP's cache.
    """
    trace = StageTrace(name)
    for event in in_order(attempts):
        trace.apply(event)
    views = [_read_attempt(place, name, attempt, attempts[attempt]) for attempt in [*attempts][-MOST_ATTEMPTS:]]
    if views and views[-1].log is None:
        events = attempts[views[-1].name]
        messages = [str(event.get("message", "")) for event in events if event["event"] in ("log", "error")]
        text = "\n".join(message[:_MESSAGE_CHARACTERS] for message in messages[-_LAST_MESSAGES:])
        views[-1] = views[-1].model_copy(update={"last_messages": text})
    state: StageState = trace.state(over=over)
    uri, summary = trace.uri, trace.summary
    if recorded is not None:
        state, uri, summary = recorded.state, recorded.uri, recorded.made
    elif not trace.started and cached_uri:
        state, uri, summary = "reused", cached_uri, "reused"
    done = state in ("done", "reused")
    wall_s = trace.wall_s if trace.started else None
    if state == "running" and now is not None and trace.launched_at is not None:
        wall_s = now - trace.launched_at
    if recorded is not None:
        wall_s = recorded.wall_s if state != "not started" else None
    # Errors of attempts that ended before the newest started are ignored.
    newest = max((view.started_at or 0.0 for view in views), default=0.0)
    errors = [view.error for view in views if view.error and (view.ended_at or 0.0) >= newest]
    error = errors[-1] if errors else "ended without an error" if state == "stopped" else ""
    return StageView(
        name=name,
        state=state,
        started_at=trace.launched_at,
        wall_s=wall_s,
        start_s=recorded.start_s if recorded is not None and state != "not started" else None,
        made=summary[:MOST_CHARACTERS] if done else "",
        uri=uri or None,
        manifest_sha256=recorded.manifest_sha256 if recorded else None,
        error="" if done else error,
        progress=trace.progress if trace.started and not done else None,
        attempts=views,
    )


def _read_attempt(place: RunPlace, stage: str, name: str, events: Events) -> Attempt:
    folder = storage.join(place.line, stage, ATTEMPTS_FOLDER, name)
    trace = StageTrace(stage)
    for event in events:
        trace.apply(event)
    exit_code = 0 if trace.finished else trace.exit_code
    error = trace.error
    if exit_code not in (None, 0) and not error:
        error = f"ended with exit code {exit_code} without an error; see {storage.display(folder)}"
        with suppress(*READ_ERRORS):
            document = _read_error(storage.join(folder, ERROR_NAME))
            error = document.message if document is not None else error
    log = storage.join(folder, LOG_NAME)
    return Attempt(
        name=name,
        started_at=trace.launched_at,
        ended_at=trace.last_at if trace.started else None,
        exit_code=exit_code,
        error=error[:MOST_CHARACTERS] if exit_code != 0 else "",
        folder=folder,
        log=log if storage.is_local(log) and storage.exists(log) else None,
    )


def find_maker(line: str, stage: str, uri: str, *, except_run: str) -> tuple[str, str]:
    """Return the id of the run that produced a stage's output, and the output's summary; empty if unknown.

    An output of a stage that was started alone has no run.
    """
    names = [name for name in list_attempts(line, stage) if name.partition(".")[0] != except_run]
    output = uri.rstrip("/").rpartition("/")[2]
    for name, events in reversed(read_events(line, stage, names[-_MOST_PRODUCERS:])[0].items()):
        for event in events:
            if event["event"] == "finish" and str(event.get("uri")).rstrip("/").rpartition("/")[2] == output:
                run_id, made = name.partition(".")[0], str(event.get("made", ""))[:MOST_CHARACTERS]
                return run_id if storage.exists(RunPlace(line, run_id).start_uri) else "", made
    return "", ""


def find_output(line: str, run_id: str, stage: str) -> str | None:
    """Return the URI of the output folder of a run's stage; None: neither record nor events have one.

    Raises:
        DataError: The record is damaged.
    """
    where = storage.join(run_uri(line, run_id), RUN_NAME)
    with suppress(FileNotFoundError):
        record = RunRecord.parse(storage.read_bytes(where), where=where)
        return next((each.uri for each in record.stages if each.name == stage), None)
    attempts, _ = read_events(line, stage, list_attempts(line, stage, run_id))
    ends = [event for events in attempts.values() for event in events if event["event"] in ("finish", "reused")]
    return str(ends[-1]["uri"]) if ends else None


def find_last_error(line: str, stage: str, run_id: str) -> ErrorDocument | None:
    """Return the error of the newest attempt with an error."""
    for name in reversed(list_attempts(line, stage, run_id)):
        if (error := _read_error(storage.join(line, stage, ATTEMPTS_FOLDER, name, ERROR_NAME))) is not None:
            return error
    return None


def leave_error(line: str, run_id: str, task: str, document: ErrorDocument | None) -> None:
    """Store the error of a small task; None: delete the error of an earlier attempt after success."""
    uri = storage.join(run_uri(line, run_id), ERRORS_FOLDER, f"{task}.json")
    if document is not None:
        storage.replace(uri, document.model_dump_json(indent=1).encode())
    elif storage.exists(uri):
        storage.delete(uri)


def find_errors(line: str, run_id: str) -> dict[str, ErrorDocument]:
    """Return the errors of a run's small tasks, by the task's name."""
    folder = storage.join(run_uri(line, run_id), ERRORS_FOLDER)
    errors = {name: _read_error(storage.join(folder, name)) for name in sorted(storage.list_names(folder))}
    return {name.removesuffix(".json"): error for name, error in errors.items() if error is not None}


def read_warnings(shards_uri: str) -> list[str]:
    """Return the warnings of finished shards; empty without a readable manifest."""
    with suppress(DataError, FileNotFoundError, NotADirectoryError):
        return ShardManifest.load(shards_uri).warnings
    return []


def _read_error(uri: str) -> ErrorDocument | None:
    """Read an error; None: it was deleted, truncated, or written by another version."""
    with suppress(FileNotFoundError, ValueError):
        return ErrorDocument.model_validate_json(read_small(uri))
    return None


def _progress_of(event: Event, time: float) -> Progress | None:
    done, total = as_number(event.get("done")), as_number(event.get("total"))
    if done is None or total is None:
        return None
    unit, message = str(event.get("unit", ""))[:40], str(event.get("message", ""))[:MOST_CHARACTERS]
    return Progress(done=done, total=total, unit=unit, message=message, at=time)


def _integer(value: object, default: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
