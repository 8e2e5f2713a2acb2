"""Runs on the terminal: a list, and the essentials of one. Text of a run is printed as text, never as markup."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contracts import storage
from contracts.goodput import count_stops
from inspection.profile import OFF, describe_findings, describe_rate
from inspection.report import describe_gates, describe_parity
from inspection.run.door import plain
from inspection.run.view import RunLine, RunView
from pages.markup import UNPRINTABLE
from pages.quantities import seconds, size, usd

_PLAIN_WIDTH = 150
_STYLES = {
    "succeeded": "green",
    "done": "green",
    "reused": "cyan",
    "running": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "red",
    "silent": "magenta",
}
NOT_KNOWN = ""


def print_runs(lines: Sequence[RunLine], stream: TextIO) -> None:
    """Print a line for each run."""
    console = _console(stream)
    if not lines:
        console.print("no runs here")
        return
    table = Table(box=SIMPLE)
    for name in ("run", "state", "where", "started (UTC)"):
        table.add_column(name, no_wrap=name == "run")
    for name in ("took", "test result", "ships", "goodput", "preempted", "USD"):
        table.add_column(name, justify="right")
    for line in lines:
        ships = " ".join(filter(None, (line.precision, line.verdict)))
        table.add_row(
            _text(f"{line.name}/{line.id}"),
            _state(line.state),
            _text(line.problem or line.stage or line.error),
            _moment(line.started_at),
            NOT_KNOWN if line.wall_s is None else seconds(line.wall_s),
            NOT_KNOWN if line.test_value is None else _text(f"{line.test_value:.4f} {line.headline}"),
            _text(ships),
            NOT_KNOWN if line.goodput_percent is None else f"{line.goodput_percent:.0f} %",
            NOT_KNOWN if line.preemptions is None else str(line.preemptions),
            NOT_KNOWN if line.cost_usd is None else f"≤ {line.cost_usd:.2f}",
        )
    console.print(table)


def to_json(view: RunView) -> str:
    """Return everything that is known of a run as JSON, whatever is in it: what is no number of JSON is null."""
    return json.dumps(plain(view.model_dump(mode="python")), indent=1, default=str)


def print_run(view: RunView, stream: TextIO) -> None:
    """Print what a user asks first of a run."""
    console = _console(stream)
    console.print(Text.assemble(_text(f"run {view.name}/{view.id}: "), _state(view.state)))
    for text in _head(view):
        console.print(_text(f"  {text}"), soft_wrap=True)
    table = Table(box=SIMPLE)
    for name in ("stage", "state", "took", "what it made"):
        table.add_column(name, overflow="fold")
    for stage in view.stages:
        told = stage.made
        if stage.state == "running" and stage.progress is not None:
            found = stage.progress
            told = f"{found.done:g} of {found.total:g} {found.unit} {found.message}"
        took = NOT_KNOWN if stage.wall_s is None else seconds(stage.wall_s)
        table.add_row(_text(stage.name), _state(stage.state), took, _text(told))
    console.print(table)
    rows = list(_rows(view))
    width = max((len(name) for name, _ in rows), default=0) + 1
    for name, text in rows:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), _text(text)), soft_wrap=True)
    for stage in view.stages:
        if stage.error and stage.state != "running":
            console.print(_text(f"stage {stage.name}: {stage.error}"), style="red", soft_wrap=True)


def _head(view: RunView) -> Iterator[str]:
    yield storage.display(view.folder)
    if view.console:
        yield view.console
    if view.started_at is not None:
        took = f", {seconds(view.wall_s)}" if view.wall_s is not None else ""
        yield f"started {_moment(view.started_at)} UTC{took}"
    if view.state in ("stopped", "silent"):
        last = f"; last word {_moment(view.last_word_at)} UTC" if view.last_word_at else ""
        why = "its process is gone" if view.state == "stopped" else "no record, and no word for a while"
        yield f"{why}{last}. The same command goes on where it stopped"
    if view.state == "interrupted" and view.error:
        yield view.error.splitlines()[0]


def _rows(view: RunView) -> Iterator[tuple[str, str]]:
    if (data := view.data) is not None:
        counts = ", ".join(f"{split.name} {split.samples}" for split in data.splits)
        shards, total = sum(part.shards for part in data.shards), size(sum(part.bytes for part in data.shards))
        classes = f"{data.num_classes} classes, " if data.num_classes else ""
        held = f"{classes}{shards} shards, {total}; {data.num_rejected} files rejected"
        yield "data", f"{counts}; {held}"
        yield from (("warning", f"data: {text}") for text in data.warnings)
    if (profile := view.profile) is not None:
        choice = profile.choice
        cut = f"slot size {choice.slot_size} x {choice.slots_per_rank} per rank, {choice.num_workers} workers"
        yield "profile", OFF if profile.method == "off" else f"{cut}; {describe_rate(profile.chosen_point())}"
        yield from describe_findings(profile.findings, profile.recommendations)
    if (trained := view.checkpoint) is not None:
        yield "metrics", ", ".join(f"{name} {value:.4f}" for name, value in sorted(trained.metrics.items()))
        yield from (("warning", f"training: {text}") for text in trained.warnings)
        if trained.initial is not None:
            yield "started with", trained.initial.in_words()
        if trained.ended_by not in ("", "epochs"):
            yield "ended by", f"{trained.ended_by}; the best checkpoint is that of step {trained.best_step:,}"
    if (goodput := view.goodput) is not None:
        yield (
            "goodput",
            (
                f"{goodput.goodput_percent:.1f} % of {seconds(goodput.wall_s)}; {goodput.attempts} attempts, "
                f"{count_stops(goodput)}, {goodput.lost_steps} steps lost"
            ),
        )
    if (money := view.money) is not None:
        demand = f"; on demand {_range(money.on_demand_low_usd, money.on_demand_high_usd)}"
        cost = f"{_range(money.cost_low_usd, money.cost_high_usd)} (estimate, {money.strategy or 'configured'})"
        yield "cost", cost + (demand if money.on_demand_low_usd is not None else "")
    if (exported := view.export) is not None:
        fell = f", {exported.asked_precision} was asked for" if exported.precision != exported.asked_precision else ""
        yield "export", f"{exported.precision}, {exported.verdict}{fell}"
        shown = ", ".join(f"{name} {value:.4f}" for name, value in exported.headline_values.items())
        yield exported.headline.metric.replace("_", " "), f"{shown} ({exported.measured_samples} test samples)"
        for ran, by_precision in exported.parity.items():
            for precision, parity in by_precision.items():
                yield f"parity {ran}", f"{precision}: {describe_parity(parity.model_dump())}"
        yield "gates", describe_gates([gate.model_dump() for gate in exported.gates])
    for entry in view.lineage:
        yield entry.name, f"sha256 {entry.sha256}" if entry.sha256 else entry.fingerprint
    for missing in view.missing:
        yield "not known", f"{missing.what}: {missing.reason}"


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "not known"
    return usd(high) if low == high else f"{usd(low)} to {usd(high)}"


def _moment(at: float | None) -> str:
    if at is None:
        return NOT_KNOWN
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _text(value: str) -> Text:
    # Controls could move the cursor, or lie about what stands where.
    return Text(UNPRINTABLE.sub("\ufffd", value))


def _console(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH, highlight=False)
