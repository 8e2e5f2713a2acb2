"""Event log of a stage: JSON lines, one file per attempt.

A stage writes it to `attempts/ATTEMPT/events.jsonl`; `shardline run` draws progress from it. Every event has `time`
(seconds since the epoch), `stage`, `attempt` and `event`, which is one of:

    start      the process is up; launched_at is when its parent started it
    ready      imports are done and work begins
    folder     uri: the folder that this attempt works on; fingerprint
    progress   done, total, unit; message says what just happened
    log        message
    reused     uri: a finished folder was found, nothing was done
    finish     uri: the stage's document is committed; made says what it made
    error      exit_code, message
    exit       the process ended: exit_code, launched_at, wall_s; written by whoever started it
    interrupted  signal: a user's signal (SIGINT, SIGTERM, SIGHUP) ends it; written by the command that received it
    hang       rank, section, step, message: the watchdog ended a rank

and, of a training: machine (node_rank, nodes; preemptible: a platform may take it away) by each machine; life, resume,
spent, checkpoint and stop, the ledger's, by the first rank (contracts/goodput.py). A training's `log` at the end of an
epoch says what its validation came to; beside its step, a `progress` message says the last one and the best.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

EVENTS_NAME = "events.jsonl"
ERROR_NAME = "error.json"
LOG_NAME = "log.txt"
ATTEMPTS_FOLDER = "attempts"


class EventLog:
    """Appends events of one attempt; several processes may append to the same file.

    An event that cannot be written (full disk) is lost, with one warning on stderr.
    """

    def __init__(self, folder: Path | None, *, stage: str, attempt: str) -> None:
        self.folder = folder
        self.stage = stage
        self.attempt = attempt
        self._has_failed = False
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event; without a folder nothing is kept."""
        if self.folder is None:
            return
        record = {"time": time.time(), "stage": self.stage, "attempt": self.attempt, "event": event, **fields}
        line = (json.dumps(record) + "\n").encode()
        try:
            # One write with O_APPEND: lines of several processes do not interleave.
            descriptor = os.open(self.folder / EVENTS_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                print_error(f"warning: events cannot be written to {self.folder}: {error}")


class EventReader:
    """Reads a growing event file: each call of `poll` yields what is new and complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def poll(self) -> Iterator[dict[str, Any]]:
        """Yield the complete events since the last call; lines that are no JSON (full disk) are skipped."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                content = stream.read()
        except FileNotFoundError:
            return
        num_complete = content.rfind(b"\n") + 1
        self._offset += num_complete
        for line in content[:num_complete].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def print_error(message: str) -> None:
    """Print to stderr and ignore errors: stderr may be a file on a full disk."""
    with suppress(OSError):
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
