"""Where the time of the training and the money went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class Part:
    """A part of the training's time."""

    field: str
    kind: str
    """Of its colour."""
    name: str
    meaning: str
    seconds: float
    """May be no number, as damaged events leave it."""
    share: float


@dataclass(frozen=True)
class Count:
    """Something that was counted."""

    name: str
    title: str
    value: float
    note: str


@dataclass(frozen=True)
class Goodput:
    """The account of the training's time."""

    percent: float
    wall_s: float
    parts: tuple[Part, ...]
    counts: tuple[Count, ...]
    node_hours: float
    between_attempts_s: float


@dataclass(frozen=True)
class Money:
    """What the machines cost: estimates, each with a lower and an upper end in US dollars."""

    cost: tuple[float | None, float | None]
    cost_note: str
    on_demand: tuple[float | None, float | None]
    saved: tuple[float | None, float | None]
    saved_nothing: bool
    node_hours: float
    machine: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TimeSection(View):
    """Where time and money went."""

    template: ClassVar[str] = "run/time.html.j2"
    title: str
    goodput: Goodput | None = None
    no_goodput: str = ""
    """Why there is no account."""
    money: Money | None = None
    no_money: str = ""
    """Why the cost is not known."""
    is_unpriced: bool = False
    """Whether a setting would make the cost of the next run known."""
