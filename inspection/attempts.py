"""The attempts that a run has made at a stage, in whatever place the line lives."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from contracts import storage
from contracts.errors import ErrorDocument
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME, EVENTS_NAME

Events = list[dict[str, Any]]


def read_attempts(line: str, stage: str, run_id: str) -> dict[str, Events]:
    """Return the events of each attempt of a run, by the attempt's name, in the order in which they began."""
    folder = storage.join(line, stage, ATTEMPTS_FOLDER)
    names = sorted(name for name in storage.list_names(folder) if name.partition(".")[0] == run_id)
    return {name: _read_events(storage.join(folder, name, EVENTS_NAME)) for name in names}


def find_last_error(line: str, stage: str, run_id: str) -> ErrorDocument | None:
    """Return the error that the newest attempt which left one ended with."""
    folder = storage.join(line, stage, ATTEMPTS_FOLDER)
    for name in sorted((n for n in storage.list_names(folder) if n.partition(".")[0] == run_id), reverse=True):
        try:
            return ErrorDocument.model_validate_json(storage.read_bytes(storage.join(folder, name, ERROR_NAME)))
        except (FileNotFoundError, ValidationError):
            continue
    return None


def _read_events(uri: str) -> Events:
    try:
        content = storage.read_bytes(uri)
    except FileNotFoundError:
        return []
    # The last line of a process that was killed, or works on, may be a part of one.
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [event for event in map(json.loads, lines) if isinstance(event, dict)]
