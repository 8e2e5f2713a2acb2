"""The events of attempts, read side by side and in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from contracts import storage
from contracts.artifacts import RunRecord
from contracts.errors import ShardlineError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from contracts.previous import RUN_NAME
from contracts.result import run_uri
from inspection.attempts import Events
from inspection.run.door import HARM, Door, first_line, parse_json

_THREADS = 16
# Of all attempts of a stage together, some hundred bytes an event: what is longer is none of ours, or never rests.
MOST_BYTES = 32 << 20
_LEAST_BYTES = 64 << 10


def read_events_of(
    line: str, stage: str, names: Iterable[str], *, whole: bool = False
) -> tuple[dict[str, Events], list[str]]:
    """Return the events of attempts by the attempt's name, and what could not be read, in words.

    Args:
        line: URI of the line's folder.
        stage: Of the attempts.
        names: Of the attempts.
        whole: For what is written once and for all: no part of a file is left out, however large, and a bucket that
            does not answer is an error.

    Raises:
        ShardlineError: `whole`, and the store failed.
    """
    names = list(names)
    folder = storage.join(line, stage, ATTEMPTS_FOLDER)
    problems: list[str] = []
    door = Door(line)
    share = sys.maxsize if whole else max(_LEAST_BYTES, MOST_BYTES // max(1, len(names)))

    def read(name: str) -> Events:
        try:
            uri = storage.join(folder, name, EVENTS_NAME)
            door.require(uri)
            return _read(uri, share, problems)
        except FileNotFoundError:
            return []
        except HARM as error:
            if whole and isinstance(error, (OSError, ShardlineError)):
                raise
            problems.append(f"events of attempt {name}: {first_line(error)}")
            return []

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(read, names), strict=True)), problems


def list_attempts(line: str, stage: str) -> list[str]:
    """Return the names of a stage's attempts, of all runs of the line, in the order in which they began."""
    names = storage.list_names(storage.join(line, stage, ATTEMPTS_FOLDER))
    return [name for name in names if not name.startswith(".")]


def of_run(names: Iterable[str], run_id: str) -> list[str]:
    """Return those attempts that are a run's: RUN, or RUN.TIME where a run has several."""
    return [name for name in names if name == run_id or name.startswith(f"{run_id}.")]


def find_output(line: str, run_id: str, stage: str) -> str | None:
    """Return the URI of the folder that a run's stage has ended with: by the run's record, else by its events.

    None: neither tells of one.

    Raises:
        DataError: The record is damaged.
    """
    where = storage.join(run_uri(line, run_id), RUN_NAME)
    with suppress(FileNotFoundError):
        record = RunRecord.parse(storage.read_bytes(where), where=where)
        return next((each.uri for each in record.stages if each.name == stage), None)
    told, _ = read_events_of(line, stage, of_run(list_attempts(line, stage), run_id))
    ends = [event for events in told.values() for event in events if event["event"] in ("finish", "reused")]
    return str(ends[-1]["uri"]) if ends else None


def _read(uri: str, most: int, problems: list[str]) -> Events:
    size = storage.info(uri).size
    if size <= most:
        parts = [storage.read_range(uri, 0, min(most, max(size, _LEAST_BYTES)))]
    else:
        problems.append(f"{storage.display(uri)} has {size} bytes: what is in the middle of it was not read")
        parts = [storage.read_range(uri, 0, most // 4), storage.read_range(uri, size - most * 3 // 4, most * 3 // 4)]
    events: Events = []
    damaged = 0
    for part in parts:
        for text in part.split(b"\n"):
            event = _parse(text)
            if event is None:
                damaged += bool(text.strip())
            else:
                events.append(event)
    # One is what a process leaves that was killed while it wrote.
    if damaged > len(parts):
        problems.append(f"{storage.display(uri)}: {damaged} lines are no events")
    return events


def _parse(text: bytes) -> dict[str, object] | None:
    with suppress(ValueError):
        event = parse_json(text)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            time = event.get("time")
            if isinstance(time, (int, float)) and not isinstance(time, bool) and abs(time) < 1e12:
                return event
    return None
