"""Current step of a training on a simulated machine, from its event files.

They are below the machine's TMPDIR while the output is in a bucket (contracts/attempts.py copies them there).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.events import EVENTS_NAME, EventReader
from contracts.goodput import step_after

# Interval of scans of the machine's whole disk for new files.
_WALK_S = 1.0


class StepWatch:
    """Reads the newest step from event files below a folder, except files that exist at construction."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known_files = set(_find_events(folder))
        self._walked_at = -_WALK_S
        self._readers: dict[Path, EventReader] = {}
        self.step = 0
        """Last reported step; 0: none."""
        self.total = 0
        """Steps of the training; 0: not known yet."""

    def read(self) -> None:
        """Read new events; scans for new files once per second."""
        if time.monotonic() - self._walked_at >= _WALK_S:
            self._walked_at = time.monotonic()
            for path in set(_find_events(self._folder)) - self._known_files:
                self._readers.setdefault(path, EventReader(path))
        for reader in self._readers.values():
            for event in reader.poll():
                if event.get("event") == "progress" and event.get("unit") == "steps":
                    self.total = int(event["total"])
                self.step = max(self.step, step_after(event, 0) or 0)


def _find_events(folder: Path) -> Iterator[Path]:
    """Yield the event files below a folder."""
    # Unlike Path.rglob, os.walk ignores folders that are deleted during the scan.
    for place, _, names in os.walk(folder):
        if EVENTS_NAME in names:
            yield Path(place, EVENTS_NAME)
