"""Log and progress lines of a training: events of its first rank, and lines on stderr, a container's log."""

from __future__ import annotations

import time

from contracts.events import EventLog, print_error

# Between two lines of progress on stderr, where nothing draws events.
PRINT_EVERY_S = 60.0


class RankLog:
    """Log of all ranks, written once, by the first one.

    Args:
        events: Of this rank.
        is_first: Whether this is the first rank; the others say nothing.
    """

    def __init__(self, events: EventLog, *, is_first: bool) -> None:
        self._events, self._is_first = events, is_first
        self._printed_at = time.monotonic()

    def log(self, message: str) -> None:
        """Say something."""
        if self._is_first:
            self._events.emit("log", message=message)
            print_error(f"train: {message}")

    def progress(self, step: int, total_steps: int, message: str) -> None:
        """Say how far training is; now and then on stderr too."""
        if not self._is_first:
            return
        self._events.emit("progress", done=step, total=total_steps, unit="steps", message=message)
        if time.monotonic() - self._printed_at >= PRINT_EVERY_S:
            self._printed_at = time.monotonic()
            print_error(f"train: step {step} of {total_steps}, {message}")
