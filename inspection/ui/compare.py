"""What differs between runs, by view; the first run is what the others are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspection.run.before import flatten
from inspection.run.view import LineageView, RunView
from pages.ui.comparison import Origin, Setting


def settings(documents: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Return every leaf of the documents, one per run, by its dotted name."""
    flat = [flatten(document) for document in documents]
    values = {name: tuple(each.get(name) for each in flat) for name in sorted(set().union(*flat))}
    return [Setting(name, found, len(set(found)) > 1) for name, found in values.items()]


def choices(views: Sequence[RunView]) -> list[Setting]:
    """Return what the profiling runs have chosen; empty where none has."""
    return settings([{} if v.profile is None else v.profile.choice.model_dump(mode="json") for v in views])


def origins(views: Sequence[RunView]) -> list[Origin]:
    """Return the documents on the way from the listing to the engine, and which of them all runs share."""
    found = [{item.name: item for item in view.lineage} for view in views]
    names = dict.fromkeys(name for each in found for name in each)
    return [_origin(name, [each.get(name) for each in found]) for name in names]


def _origin(name: str, items: Sequence[LineageView | None]) -> Origin:
    for field in ("sha256", "fingerprint"):
        hashes = tuple("" if item is None else str(getattr(item, field)) for item in items)
        if all(hashes):
            return Origin(name, "same" if len(set(hashes)) == 1 else "different", hashes)
    return Origin(name, "unknown", tuple("" if item is None else item.sha256 or item.fingerprint for item in items))
