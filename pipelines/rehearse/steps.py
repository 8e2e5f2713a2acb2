"""How far a training on one machine is, read from what it writes there: its events, and its ranks' signs of life.

Both lie below the machine's TMPDIR while the output is in a bucket (contracts/attempts.py copies them from there).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from contracts.events import EVENTS_NAME, EventReader

_HEARTBEATS = "heartbeat-*.json"
# All of a machine's disk is walked, and a job may have many.
_WALK_S = 1.0


class StepWatch:
    """Reads the newest step below a folder; what was there before it was made does not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found = list(_find_events(folder))
        self._old = {path for path, _ in self._found}
        self._looked_at = -_WALK_S
        self._readers: dict[Path, EventReader] = {}
        self.step = 0
        """The last that was reported; 0: none."""
        self.total = 0
        """Steps of the training; 0: not known yet."""

    def look(self) -> None:
        """Read what is new; folders that are new are looked for once a second."""
        if time.monotonic() - self._looked_at >= _WALK_S:
            self._looked_at = time.monotonic()
            self._found = list(_find_events(self._folder))
        for path, beats in self._found:
            if path in self._old:
                continue
            reader = self._readers.setdefault(path, EventReader(path))
            for event in reader.poll():
                if event.get("event") == "progress" and event.get("unit") == "steps":
                    self.step, self.total = max(self.step, int(event["done"])), int(event["total"])
            for beat in beats:
                try:
                    self.step = max(self.step, int(json.loads(beat.read_bytes()).get("step") or 0))
                except (OSError, ValueError):
                    continue


def _find_events(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield files of events below a folder, and the signs of life beside each; a folder may vanish meanwhile."""
    # Path.rglob raises where a folder that it has listed is gone; os.walk passes over it.
    for place, _, names in os.walk(folder):
        if EVENTS_NAME in names:
            yield Path(place, EVENTS_NAME), [Path(place, name) for name in names if fnmatch(name, _HEARTBEATS)]
