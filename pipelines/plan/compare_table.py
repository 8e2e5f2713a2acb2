"""A comparison of machines as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import TextIO

from pipelines.plan.compare import Comparison


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Print one line a candidate, then every assumption, then why something is unknown."""
    from rich.console import Console
    from rich.table import Table

    width = None if stream.isatty() else 200
    console = Console(file=stream, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)
    table = Table(
        "machines",
        "strategy",
        "samples/s",
        "from",
        "efficiency",
        "from",
        "hours",
        "USD, estimate",
        "USD an epoch",
        box=None,
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for entry in comparison.candidates:
        table.add_row(
            f"{entry.nodes} x {entry.machine.label}",
            entry.strategy,
            _number(entry.samples_per_s, "{:.0f}"),
            entry.speed_from,
            _number(entry.efficiency, "{:.2f}"),
            entry.efficiency_from,
            _number(entry.hours, "{:.2f}"),
            _range(entry.low_usd, entry.high_usd),
            _range(entry.low_usd_per_epoch, entry.high_usd_per_epoch),
        )
    console.print(table)
    console.print(f"in {comparison.region}; prices from {', '.join(_sources(comparison)) or 'nowhere'}")
    for assumption in comparison.assumptions:
        console.print(f"assumed: {assumption}")
    for reason in comparison.unknown:
        console.print(f"unknown: {reason}")


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON."""
    return json.dumps(dataclasses.asdict(comparison), indent=1, sort_keys=True)


def _sources(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(entry.price_from for entry in comparison.candidates if entry.price_from))


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else form.format(value)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{low:.2f} to {high:.2f}" if high >= 0.005 else f"{low:.4f} to {high:.4f}"
