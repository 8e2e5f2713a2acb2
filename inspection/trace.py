"""What is known of a stage while it runs, and after: built from its events alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts.artifacts import StageRecord
from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, ErrorDocument
from contracts.events import ERROR_NAME, EVENTS_NAME, LOG_NAME, EventReader

Event = Mapping[str, Any]


@dataclass
class StageTrace:
    """One attempt of one stage, as its events tell it. Times are seconds since the epoch."""

    name: str
    folder: Path
    """Where the attempt leaves its events, error and log."""
    launched_at: float | None = None
    pid: int | None = None
    """Of its process."""
    ready_at: float | None = None
    last_at: float = 0.0
    uri: str | None = None
    """Folder of the finished document."""
    made: str = ""
    reused: bool = False
    exit_code: int | None = None
    exit_wall_s: float | None = None
    interrupted: bool = False
    """A user's signal ended it."""
    _reader: EventReader | None = field(default=None, repr=False)

    def poll(self) -> Iterator[Event]:
        """Take in the events written since the last call, and yield them."""
        if self._reader is None:
            self._reader = EventReader(self.folder / EVENTS_NAME)
        for event in self._reader.poll():
            self.apply(event)
            yield event

    def apply(self, event: Event) -> None:
        """Take in one event."""
        self.last_at = float(event.get("time", self.last_at))
        match event["event"]:
            case "start":
                self.launched_at = float(event["launched_at"])
                self.pid = event.get("pid")
            case "ready" if self.ready_at is None:
                self.ready_at = float(event["time"])
            case "reused":
                self.uri, self.reused = event["uri"], True
            case "finish":
                self.uri, self.made = event["uri"], event["made"]
            case "interrupted":
                self.interrupted = True
            case "exit":
                self.launched_at = float(event["launched_at"])
                self.exit_code, self.exit_wall_s = int(event["exit_code"]), float(event["wall_s"])

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self.launched_at is not None

    @property
    def finished(self) -> bool:
        """Whether its document is there and its process ended well."""
        return self.uri is not None and self.exit_code == 0

    @property
    def wall_s(self) -> float:
        """Life of its process; up to its last event, when its end was not seen."""
        if self.exit_wall_s is not None:
            return self.exit_wall_s
        return max(0.0, self.last_at - self.launched_at) if self.launched_at is not None else 0.0

    @property
    def start_s(self) -> float:
        """Part of it before the work began: process start and imports. A reused stage does nothing else."""
        if self.launched_at is None:
            return 0.0
        if self.ready_at is not None:
            return max(0.0, self.ready_at - self.launched_at)
        return self.wall_s if self.reused else 0.0

    @property
    def summary(self) -> str:
        """What it made, in words."""
        return "reused" if self.reused else self.made

    def record(self, manifest_sha256: str | None) -> StageRecord:
        """Return what a run's record says of this stage."""
        state = ("interrupted" if self.interrupted else "failed") if self.started else "not started"
        if self.finished:
            state = "reused" if self.reused else "done"
        return StageRecord.model_validate(
            {
                "name": self.name,
                "state": state,
                "wall_s": round(self.wall_s, 3),
                "start_s": round(self.start_s, 3),
                "uri": self.uri if self.finished else None,
                "manifest_sha256": manifest_sha256,
                "made": self.summary if self.finished else "",
            }
        )

    def find_error(self) -> ErrorDocument | None:
        """Return why the stage failed: its own error.json, or what its exit code says. None: it did not fail."""
        if self.exit_code == 0:
            # What a rank said that torchrun then restarted is history.
            return None
        # One that was cut off by a full disk is none.
        with suppress(FileNotFoundError, ValidationError):
            return ErrorDocument.model_validate_json((self.folder / ERROR_NAME).read_bytes())
        if self.exit_code is None or self.exit_code == 0:
            return None
        log = self.folder / LOG_NAME
        if self.exit_code < 0:
            ended = f"was ended by signal {-self.exit_code}" + (" (out of memory?)" if self.exit_code == -9 else "")
            message = f"{ended}\n  to do: run the same command again; what it said is in {log}"
            return ErrorDocument(kind="Signal", exit_code=EXIT_TRY_AGAIN, message=message)
        message = f"ended with exit code {self.exit_code} and left no {ERROR_NAME}\n  to do: see {log}"
        return ErrorDocument(kind="Crash", exit_code=EXIT_FAULT, message=message)
