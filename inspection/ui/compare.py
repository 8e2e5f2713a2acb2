"""What differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inspection.run.view import LineageView, RunView

Verdict = Literal["same", "different", "unknown"]
# Sections of sections; a configuration of ours has four.
_DEEPEST = 32


@dataclass(frozen=True)
class Pair:
    """A value of each run, as text; None: the run has none."""

    name: str
    a: str | None
    b: str | None

    @property
    def differs(self) -> bool:
        """Whether they are not the same."""
        return self.a != self.b


@dataclass(frozen=True)
class Origin:
    """A document that each run was made from or made."""

    name: str
    verdict: Verdict
    a: str
    """Hash."""
    b: str


def flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the leaves of nested sections by their dotted names, as JSON; a list is a leaf, and what lies too deep."""
    found: dict[str, str] = {}
    rest: list[tuple[str, Any, int]] = [(name, value, 1) for name, value in values.items()]
    while rest:
        name, value, depth = rest.pop()
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            rest += [(f"{name}.{key}", each, depth + 1) for key, each in value.items()]
        else:
            found[name] = _leaf(value)
    return found


def _leaf(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    except RecursionError:
        return "nested too deep to be shown"


def pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Pair]:
    """Return every leaf of either, by name."""
    left, right = flatten(a), flatten(b)
    return [Pair(name, left.get(name), right.get(name)) for name in sorted(left | right)]


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
