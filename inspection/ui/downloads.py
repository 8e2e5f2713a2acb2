"""The list of runs as a table for spreadsheets."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

from inspection.run.summary import RunLine
from inspection.ui.store import Listing

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
    writer.writerow(("line", "id", "started_at", *_OF_HEADLINE, "stage", "error"))
    for key, line in zip(listing.keys, listing.lines, strict=True):
        numbers = [getattr(line.headline, name) for name in _OF_HEADLINE]
        writer.writerow(map(_cell, (key.line, key.id, _moment(line), *numbers, line.stage, line.error)))
    return stream.getvalue()


def _moment(line: RunLine) -> str:
    try:
        return "" if line.started_at is None else f"{datetime.fromtimestamp(line.started_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return ""


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
