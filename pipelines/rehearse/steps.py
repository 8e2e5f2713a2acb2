"""How far a training on one machine is, read from the events that it writes there.

They lie below the machine's TMPDIR while the output is in a bucket (contracts/attempts.py copies them from there).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.events import EVENTS_NAME, EventReader
from contracts.goodput import step_after

# All of a machine's disk is walked, and a job may have many.
_WALK_S = 1.0


class StepWatch:
    """Reads the newest step below a folder; what was there before it was made does not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._old = set(_find_events(folder))
        self._walked_at = -_WALK_S
        self._readers: dict[Path, EventReader] = {}
        self.step = 0
        """The last that was reported; 0: none."""
        self.total = 0
        """Steps of the training; 0: not known yet."""

    def read(self) -> None:
        """Read what is new; new folders are looked for once a second."""
        if time.monotonic() - self._walked_at >= _WALK_S:
            self._walked_at = time.monotonic()
            for path in set(_find_events(self._folder)) - self._old:
                self._readers.setdefault(path, EventReader(path))
        for reader in self._readers.values():
            for event in reader.poll():
                if event.get("event") == "progress" and event.get("unit") == "steps":
                    self.total = int(event["total"])
                self.step = max(self.step, step_after(event, 0) or 0)


def _find_events(folder: Path) -> Iterator[Path]:
    """Yield files of events below a folder, which may vanish meanwhile."""
    # Path.rglob raises where a folder that it has listed is gone; os.walk passes over it.
    for place, _, names in os.walk(folder):
        if EVENTS_NAME in names:
            yield Path(place, EVENTS_NAME)
