"""The list of runs as a table for spreadsheets."""

from __future__ import annotations

import csv
import io

from inspection.ui.store import Listing
from pages.quantities import iso_instant

_OF_HEADLINE = (
    "state", "metric", "metric_value", "metric_low", "metric_high", "samples", "precision", "verdict", "wall_s",
    "goodput_percent", "preemptions", "cost_low_usd", "cost_high_usd", "strategy", "training_reused",
)  # fmt: skip
# A spreadsheet takes a cell for a formula that begins so.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(listing: Listing) -> str:
    """Return a row per run, the newest first, with a header; empty cells are not known."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    parameters, metrics = (
        list(dict.fromkeys(name for line in listing.lines for name in getattr(line, kind)))
        for kind in ("parameters", "metrics")
    )
    named = (*(f"parameter.{name}" for name in parameters), *(f"metric.{name}" for name in metrics))
    writer.writerow(map(_cell, ("line", "id", "started_at", *_OF_HEADLINE, "stage", "error", "tags", *named)))
    for key, line in zip(listing.keys, listing.lines, strict=True):
        numbers = [getattr(line.headline, name) for name in _OF_HEADLINE]
        values = [*map(line.parameters.get, parameters), *map(line.metrics.get, metrics)]
        known = (key.line, key.id, iso_instant(line.started_at), *numbers, line.stage, line.error, " ".join(line.tags))
        writer.writerow(map(_cell, (*known, *values)))
    return stream.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
