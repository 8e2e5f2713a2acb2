"""How far a training on one machine is, read from what it writes there: its events, and its ranks' signs of life.

Both lie below the machine's TMPDIR while the output is in a bucket (contracts/keeper.py copies them from there).
"""

from __future__ import annotations

import json
from pathlib import Path

from contracts.events import EVENTS_NAME, EventReader

_HEARTBEATS = "heartbeat-*.json"


class StepWatch:
    """Reads the newest step below a folder; what was there before it was made does not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._old = set(folder.rglob(EVENTS_NAME))
        self._readers: dict[Path, EventReader] = {}
        self.step = 0
        """The last that was reported; 0: none."""
        self.total = 0
        """Steps of the training; 0: not known yet."""

    def look(self) -> None:
        """Read what is new."""
        for path in self._folder.rglob(EVENTS_NAME):
            if path in self._old:
                continue
            reader = self._readers.setdefault(path, EventReader(path))
            for event in reader.poll():
                if event.get("event") == "progress" and event.get("unit") == "steps":
                    self.step, self.total = max(self.step, int(event["done"])), int(event["total"])
            for beat in path.parent.glob(_HEARTBEATS):
                try:
                    self.step = max(self.step, int(json.loads(beat.read_bytes()).get("step") or 0))
                except (OSError, ValueError):
                    continue
