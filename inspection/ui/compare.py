"""What differs between runs, by view; the first run is what the others are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inspection.run.before import compare
from inspection.run.view import DataView, LineageView, RunView

# Of a comparison of data.
_MOST_CLASSES = 200


@dataclass(frozen=True)
class Setting:
    """A value of each run by its key; None: a run does not have it."""

    name: str
    values: tuple[str | None, ...]
    differs: bool


@dataclass(frozen=True)
class Origin:
    """A document that runs were made from or made."""

    name: str
    verdict: Literal["same", "different", "unknown"]
    hashes: tuple[str, ...]
    """Of each run; empty: it has none."""


def settings(documents: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Return every leaf of the documents, one per run, by its dotted name."""
    return [Setting(name, found, len(set(found)) > 1) for name, found in compare(documents).items()]


def choices(views: Sequence[RunView]) -> list[Setting]:
    """Return what the profiling runs have chosen; empty where none has."""
    return settings([{} if v.profile is None else v.profile.choice.model_dump(mode="json") for v in views])


def count_data(data: DataView | None) -> list[tuple[str, int]]:
    """Return what is counted of a run's data, by name: samples by split, then by split and class, the largest first."""
    if data is None:
        return []
    splits = [(f"{split.name} samples", split.samples) for split in data.splits]
    whole = [("classes", data.num_classes), ("rejected files", data.num_rejected), ("ignored files", data.num_ignored)]
    copies = [("copies", data.duplicate_copies)] if data.duplicate_copies is not None else []
    by_class = [
        (f"{split.name} samples of {name}", split.by_class[place])
        for place, name in enumerate(data.classes[:_MOST_CLASSES])
        for split in data.splits
    ]
    return [*splits, *whole, *copies, *by_class]


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
