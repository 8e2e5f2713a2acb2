"""Progress lines of a drill: steps of a training by the events of its attempts, kills and starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from contracts.events import EVENTS_NAME, EventReader

# One line for each tenth of the steps.
_PARTS = 10


class DrillProgress:
    """Progress of one training of a drill.

    Args:
        name: Of the training.
        say: Takes a line.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._reader: EventReader | None = None
        self._part = -1

    def say(self, message: str) -> None:
        """Say something of this training."""
        self._say(f"{self._name}: {message}")

    def follow(self, attempt: Path) -> None:
        """Look at the events of an attempt from now on.

        Args:
            attempt: Its folder.
        """
        self._reader = EventReader(attempt / EVENTS_NAME)

    def look(self) -> None:
        """Say what is new: each tenth of the steps, and where ranks that were started again go on."""
        for event in self._reader.poll() if self._reader else ():
            if event["event"] == "resume" and event["step"]:
                self.say(f"goes on from the checkpoint of step {event['step']}")
                self._part = -1
            elif event["event"] == "progress" and event["unit"] == "steps" and event["total"]:
                part = int(_PARTS * event["done"] / event["total"])
                if part != self._part:
                    self.say(f"step {event['done']} of {event['total']}")
                self._part = part
