"""What a page is about: the run, how much of it is shown, and why something is not there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from inspection.page.links import Href, elsewhere
from inspection.run.door import as_object
from inspection.run.view import RunView, StageView
from pages.markup import shorten

NO_VALUE = "\u2013"
"""Of a cell that has nothing to say."""


@dataclass(frozen=True)
class Limits:
    """How much of what is known a page shows; it says what it leaves out."""

    attempts: int = 60
    """Rows of the attempts, over all stages."""
    classes: int = 40
    """Rows of a table by class: of more, the first and the last."""
    confusion: int = 30
    """Classes of a confusion matrix: of more, the pairs that are confused most."""
    rows: int = 40
    """Rows of other tables."""
    pictures: int = 60
    worst: int = 24
    points: int = 400
    """Points of a curve."""
    curves: int = 24
    marks: int = 600
    """Marks on the time axis that can be pointed at."""
    shards: int = 120
    """Bars of a split's shards."""
    cells: int = 24
    """Rows and columns of the heat map."""
    name: int = 160
    """Characters of a name that comes from a run."""
    reason: int = 4000
    """Characters of a message."""
    config: int = 120_000
    """Characters of the configuration."""

    def halved(self) -> Limits:
        """Return limits half as wide."""
        return Limits(**{field.name: max(1, getattr(self, field.name) // 2) for field in fields(self)})


@dataclass(frozen=True)
class Subject:
    """What a page is about."""

    view: RunView
    limits: Limits = Limits()
    href: Href = elsewhere

    def name(self, value: str) -> str:
        """Return a name from the run, cut where it is very long."""
        return shorten(value, self.limits.name)

    def reason(self, value: str) -> str:
        """Return a message from the run, cut where it is very long."""
        return shorten(value, self.limits.reason)

    def why_absent(self, stage: str, what: str) -> str:
        """Return why something of a stage is not there."""
        found = self.view.stage(stage)
        if found is None:
            return f"{what}: this run has no stage {stage}"
        if stage == "profile" and as_object(self.view.config.get("profile")).get("method") == "off":
            return f"{what}: none: profile.method is off"
        return f"{what}: {_WHY[found.state].format(stage=stage)}{self._cause(found)}"

    def _cause(self, stage: StageView) -> str:
        if stage.state == "failed" and stage.error:
            return f": {shorten(stage.error.splitlines()[0], 300)}"
        if stage.state not in ("not started", "waiting"):
            return ""
        ends = {"failed": "failed", "interrupted": "was interrupted"}
        return next((f": stage {one.name} {ends[one.state]}" for one in self.view.stages if one.state in ends), "")


_WHY = {
    "waiting": "not yet: stage {stage} waits for those before it",
    "running": "not yet: stage {stage} is running",
    "done": "stage {stage} is done, but this could not be read; see “Completeness”",
    "reused": "stage {stage} was reused, but this could not be read; see “Completeness”",
    "failed": "none: stage {stage} failed",
    "stopped": "none: stage {stage} was stopped before it was done",
    "interrupted": "none: stage {stage} was interrupted before it was done",
    "not started": "none: stage {stage} was not started",
}


def finite(values: Sequence[float]) -> list[float]:
    """Return those that are numbers."""
    return [value for value in values if math.isfinite(value)]


def left_out(shown: int, whole: int, what: str) -> str:
    """Return what a table leaves out, in words; empty: nothing."""
    return f"{whole - shown:,} more {what} are left out here." if whole > shown else ""
