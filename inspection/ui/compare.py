"""What differs between two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inspection.run.before import Pair, pairs
from inspection.run.view import LineageView, RunView

Verdict = Literal["same", "different", "unknown"]


@dataclass(frozen=True)
class Origin:
    """A document that each run was made from or made."""

    name: str
    verdict: Verdict
    a: str
    """Hash."""
    b: str


def choices(a: RunView, b: RunView) -> list[Pair]:
    """Return what the profiling runs have chosen; empty where neither has."""
    left, right = ({} if v.profile is None else v.profile.choice.model_dump(mode="json") for v in (a, b))
    return pairs(left, right)


def origins(a: RunView, b: RunView) -> list[Origin]:
    """Return the documents on the way from the listing to the engine, and which of them both runs share."""
    left, right = ({item.name: item for item in view.lineage} for view in (a, b))
    return [_origin(name, left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right])]


def _origin(name: str, a: LineageView | None, b: LineageView | None) -> Origin:
    for field in ("sha256", "fingerprint"):
        left, right = (getattr(item, field) if item is not None else "" for item in (a, b))
        if left and right:
            return Origin(name, "same" if left == right else "different", left, right)
    return Origin(name, "unknown", _hash(a), _hash(b))


def _hash(item: LineageView | None) -> str:
    return "" if item is None else item.sha256 or item.fingerprint
