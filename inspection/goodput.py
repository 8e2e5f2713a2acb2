"""Where the time of a training went, over all its attempts, read from the events that they left.

It works while a training goes on and for one that was killed: what was told so far is what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from contracts import storage
from contracts.artifacts import GoodputRecord
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from contracts.goodput import account

_STAGE = "train"


def read_goodput(line: str, run_id: str | None) -> GoodputRecord | None:
    """Return the account of a training of a line; None when there was none.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest training.
    """
    attempts_uri = storage.join(line, _STAGE, ATTEMPTS_FOLDER)
    attempts = {name: _read(storage.join(attempts_uri, name, EVENTS_NAME)) for name in storage.list_names(attempts_uri)}
    trainings = {name: training for name, events in attempts.items() if (training := _training_of(events))}
    # On Vertex AI a run has an attempt for each start of each machine: RUN.TIME.
    of_run = [name for name in trainings if run_id in (None, name.partition(".")[0])]
    chosen = trainings.get(max(of_run, default=""))
    if chosen is None:
        return None
    return account(attempts[name] for name, training in trainings.items() if training == chosen)


def _read(uri: str) -> list[dict[str, Any]]:
    try:
        content = storage.read_bytes(uri)
    except FileNotFoundError:
        return []
    return list(_whole_lines(content))


def _whole_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield events; the last line of a process that was killed, or works on, may be a part of one."""
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def _training_of(events: list[dict[str, Any]]) -> str:
    """Return the fingerprint of the training that an attempt worked on; empty: it did not come to that."""
    return next((str(event["fingerprint"]) for event in events if event["event"] == "folder"), "")
