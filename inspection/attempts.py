"""What a run's attempts at its stages, and its small tasks, have left behind, in whatever place the line lives."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import ErrorDocument
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME
from contracts.result import run_uri

ERRORS_FOLDER = "errors"
"""Of a run: how tasks ended that keep no attempts, TASK.json."""

Events = list[dict[str, Any]]


def find_last_error(line: str, stage: str, run_id: str) -> ErrorDocument | None:
    """Return the error that the newest attempt which left one ended with."""
    folder = storage.join(line, stage, ATTEMPTS_FOLDER)
    for name in sorted((n for n in storage.list_names(folder) if n.partition(".")[0] == run_id), reverse=True):
        try:
            return ErrorDocument.model_validate_json(storage.read_bytes(storage.join(folder, name, ERROR_NAME)))
        except (FileNotFoundError, ValidationError):
            continue
    return None


def leave_error(line: str, run_id: str, task: str, document: ErrorDocument | None) -> None:
    """Write down how a small task ended: its error, which a later attempt that succeeds (None) takes away again."""
    uri = storage.join(run_uri(line, run_id), ERRORS_FOLDER, f"{task}.json")
    if document is not None:
        storage.replace(uri, document.model_dump_json(indent=1).encode())
    elif storage.exists(uri):
        storage.delete(uri)


def find_errors(line: str, run_id: str) -> dict[str, ErrorDocument]:
    """Return the errors that the small tasks of a run have ended with, by the task's name."""
    folder = storage.join(run_uri(line, run_id), ERRORS_FOLDER)
    found = {}
    for name in sorted(storage.list_names(folder)):
        # Not there any more, or written by another version: the services' own words remain.
        with suppress(FileNotFoundError, ValidationError):
            content = storage.read_bytes(storage.join(folder, name))
            found[name.removesuffix(".json")] = ErrorDocument.model_validate_json(content)
    return found


def read_warnings(shards_uri: str) -> list[str]:
    """Return the warnings of finished shards; none where there is no manifest. Their table is not read."""
    try:
        values = json.loads(storage.read_bytes(storage.join(shards_uri, MANIFEST_NAME)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # Who reads the shards themselves says that they are damaged.
        return []
    warnings: list[str] = values.get("warnings", [])
    return warnings
