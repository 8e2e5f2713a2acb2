"""Whether a run goes on, has ended, or was killed.

Its record says how it ended. Without one: on this machine the run's lock tells whether its process lives, which the
kernel drops with the process, however it dies. In a bucket nobody can be asked, so only its newest word counts.
"""

from __future__ import annotations

from typing import Literal

from contracts import storage
from contracts.output import is_locked
from inspection.run.find import RunPlace
from inspection.run.view import State

# Copies of events come every 30 s at most while a stage works; machines may be waited for without a word.
SILENT_S = 600.0
# Without any event for so long it was cancelled, or its service lost it.
UNKNOWN_S = 86_400.0


Recorded = Literal["succeeded", "failed", "interrupted", "unreadable"]


def find_state(place: RunPlace, recorded: Recorded | None, *, last_word_at: float | None, now: float) -> State:
    """Return the state of a run.

    Args:
        place: Where it is.
        recorded: State in its record, unreadable where that cannot be read; None: it has none.
        last_word_at: Its newest event, or its start, in seconds since the epoch.
        now: The same clock.
    """
    if recorded is not None:
        return recorded
    locked = is_locked(place.folder) if storage.is_local(place.folder) else None
    if locked is not None:
        return "running" if locked else "stopped"
    silent_s = now - last_word_at if last_word_at is not None else None
    if silent_s is None or silent_s >= UNKNOWN_S:
        return "unknown"
    return "running" if silent_s < SILENT_S else "silent"
