"""The first section of a run's page: how it stands, what to worry about, what changed, what was run, and its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.links import Link
from pages.rendering import View


@dataclass(frozen=True)
class Tile:
    """A figure of the headline."""

    name: str
    title: str
    value: float | None
    text: str
    """As every other door says it; empty: not known."""
    note: str = ""
    state: str = ""
    """Shown by its shape beside the text."""


@dataclass(frozen=True)
class Failure:
    """What ended a stage or the run, in full."""

    name: str
    title: str
    said: str
    rest: tuple[tuple[str, str], ...] = ()
    """What is allowed, and what to do."""
    logs: tuple[Link, ...] = ()
    then: str = ""
    """What goes on when that is done."""


@dataclass(frozen=True)
class Change:
    """What differs from the run before; empty: it has none."""

    name: str
    before: str
    now: str


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    done: float
    total: float
    unit: str
    message: str
    at: float


@dataclass(frozen=True)
class Stage:
    """A row of the table of stages."""

    name: str
    state: str
    made: str = ""
    folder: Link | None = None
    progress: Progress | None = None
    wall_s: float | None = None
    start_s: float | None = None
    cost_usd: tuple[float, float] | None = None
    """Lower and upper end of an estimate."""
    cache: str = ""
    """Whether it worked or an earlier run had done it; empty: it has made nothing."""
    logs: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """A start of a stage."""

    name: str
    stage: str
    ended: str
    error: str = ""
    logs: tuple[Link, ...] = ()
    started_at: float | None = None
    took_s: float | None = None


@dataclass(frozen=True)
class OverviewSection(View):
    """How a run stands."""

    template: ClassVar[str] = "run/overview.html.j2"
    tiles: tuple[Tile, ...]
    pending: str
    """What stands where a figure is not known."""
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    before: str = ""
    """Id of the run of the line before this one; empty: it is the first, or unknown."""
    data_known: bool = True
    """Whether the data of both could be compared."""
    changes: tuple[Change, ...] = ()
    changes_left_out: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """What was run: name and words."""
    stages: tuple[Stage, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    """The newest of them."""
    attempts_left_out: str = ""
    all_attempts: int = 0
