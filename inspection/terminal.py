"""Runs on the terminal: a list, and the essentials of one. Text of a run is printed as text, never as markup."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contracts import storage
from contracts.artifacts import ProfileReport
from contracts.errors import DataError
from contracts.goodput import count_stops
from inspection.profile import OFF, describe, describe_cut, describe_finding, describe_rate
from inspection.report import describe_decision, describe_gates
from inspection.run.door import plain
from inspection.run.headline import NEXT, STATE_NOTES, FigureName, headline, metric_title
from inspection.run.summary import RunLine
from inspection.run.view import RunView
from inspection.tasks import show_metric
from pages.markup import UNPRINTABLE
from pages.quantities import NBSP, instant, seconds, several, size, usd

# Of a file or a pipe, which has no width of its own.
_PLAIN_WIDTH = 200
_STYLES = {
    "succeeded": "green",
    "done": "green",
    "reused": "cyan",
    "running": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "red",
    "silent": "magenta",
    "unknown": "magenta",
    "unreadable": "red",
}
NOT_KNOWN = ""
# Classes of a training's wall time (docs/goodput.md), in the order of its life.
_CLASSES = {
    "productive_s": "productive",
    "start_up_s": "start-up",
    "data_wait_s": "data wait",
    "checkpoint_s": "checkpoint stall",
    "evaluation_s": "evaluation",
    "lost_s": "lost and repeated",
    "recovery_s": "recovery",
    "stop_s": "stop",
}


def print_runs(lines: Sequence[RunLine], stream: TextIO) -> None:
    """Print a line for each run."""
    console = _console(stream)
    if not lines:
        console.print("no runs here")
        return
    table = Table(box=SIMPLE)
    for name in ("run", "state", "where", "started"):
        table.add_column(name, no_wrap=name == "run")
    columns: tuple[FigureName, ...] = ("duration", "metric", "export", "goodput", "preemptions", "cost")
    for name in ("duration", "test result", "export", "goodput", "preemptions", "cost"):
        table.add_column(name, justify="right")
    for line in lines:
        found = line.headline
        shown = {name: found.text(name) for name in columns}
        if found.metric and shown["metric"]:
            shown["metric"] += f" {metric_title(found.metric)}"
        table.add_row(
            _text(f"{line.name}/{line.id}"),
            _state(line.state),
            _text(line.problem or line.stage or line.error),
            _text(NOT_KNOWN if line.started_at is None else instant(line.started_at)),
            *(_text(text) for text in shown.values()),
        )
    console.print(table)


def to_json(view: RunView) -> str:
    """Return everything that is known of a run as JSON, whatever is in it: what is no number of JSON is null."""
    found = {"headline": headline(view).model_dump(mode="python"), **view.model_dump(mode="python")}
    return json.dumps(plain(found), indent=1, default=str)


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
        table.add_row(_text(stage.name), _state(stage.state), _text(took), _text(told))
    console.print(table)
    rows = list(_rows(view))
    width = max((len(name) for name, _ in rows), default=0) + 1
    for name, text in rows:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), _text(text)), soft_wrap=True)
    for stage in view.stages:
        if stage.error and stage.state != "running":
            console.print(_text(f"stage {stage.name}: {stage.error}"), style="red", soft_wrap=True)


def print_profile(report: ProfileReport, training: str | None, stream: TextIO) -> None:
    """Print a profile report: its points as a table, then the choice, the findings, and what the training takes.

    Raises:
        DataError: The choice is marked as measured and is none of the points.
    """
    console = _console(stream)
    if report.points:
        table = Table(box=SIMPLE)
        for name in ("slot size", "workers", "samples/s per rank", "lowest to highest", "data time", ""):
            table.add_column(name, justify="left" if not name else "right")
        for point in report.points:
            rate, low, high, share = (
                *(point.samples_per_s, point.samples_per_s_min, point.samples_per_s_max),
                point.data_time_fraction,
            )
            spread = NOT_KNOWN if low is None or high is None else f"{low:.1f} to {high:.1f}"
            chosen = "chosen" if point.settings() == report.choice.settings() else point.reason
            table.add_row(
                str(point.slot_size),
                str(point.num_workers),
                point.outcome if rate is None else f"{rate:.1f}",
                spread,
                NOT_KNOWN if share is None else f"{share:.0%}",
                _text(chosen),
            )
        console.print(table)
    for name, text in [*describe(report), *([("training", training)] if training else [])]:
        console.print(_text(f"{name}: {text}".replace("\n", "\n  ")), soft_wrap=True)


def _head(view: RunView) -> Iterator[str]:
    yield storage.display(view.folder)
    if view.console:
        yield view.console
    if view.started_at is not None:
        took = f", {seconds(view.wall_s)}" if view.wall_s is not None else ""
        yield f"started {instant(view.started_at)}{took}"
    if view.state in ("stopped", "silent", "unknown", "unreadable"):
        last = f"; last event {instant(view.last_word_at)}" if view.last_word_at else ""
        yield f"{STATE_NOTES[view.state]}{last}. {NEXT[view.state]}"
    if view.state == "interrupted" and view.error:
        yield view.error.splitlines()[0]


def _rows(view: RunView) -> Iterator[tuple[str, str]]:
    for figure in headline(view).figures:
        if figure.name != "state" and figure.text:
            yield figure.title.lower(), figure.text + (f" ({figure.note})" if figure.note else "")
    if (data := view.data) is not None:
        counts = ", ".join(f"{split.name} {split.samples}" for split in data.splits)
        shards, total = sum(part.shards for part in data.shards), size(sum(part.bytes for part in data.shards))
        classes = f"{data.num_classes} classes, " if data.num_classes else ""
        held = f"{classes}{shards} shards, {total}; {data.num_rejected} files rejected"
        yield "data", f"{counts}; {held}"
        yield from (("warning", f"data: {text}") for text in data.warnings)
    if (profile := view.profile) is not None:
        yield "profile", OFF if profile.method == "off" else f"{describe_cut(profile)}; {_rate(profile)}"
        yield from ((f"finding {finding.rule}", describe_finding(finding)) for finding in profile.findings)
    if (trained := view.checkpoint) is not None:
        shown = (f"{name} {show_metric(view.task, name)(value)}" for name, value in sorted(trained.metrics.items()))
        yield "metrics", ", ".join(shown)
        if trained.initial is not None:
            yield "started with", trained.initial.in_words()
        if trained.ended_by not in ("", "epochs"):
            yield "ended by", f"{trained.ended_by}; the best checkpoint is that of step {trained.best_step:,}"
    if (goodput := view.goodput) is not None:
        yield "training", f"{several(goodput.attempts, 'attempt')}, {count_stops(goodput)}"
        wall_s = goodput.wall_s or 1.0
        for name, title in _CLASSES.items():
            yield title, f"{getattr(goodput, name):.1f} s, {100 * getattr(goodput, name) / wall_s:.1f} %"
    if (money := view.money) is not None and money.on_demand_usd is not None:
        yield "on demand", f"{usd(money.on_demand_usd)} for the same hours"
    if (exported := view.export) is not None:
        metric, show = exported.headline.metric, show_metric(exported.task, exported.headline.metric)
        values = ", ".join(f"{name} {show(value)}" for name, value in exported.headline_values.items())
        yield f"exported {metric_title(metric)}", f"{values} ({exported.proof_samples} test samples)"
        yield "gates", describe_gates([gate.model_dump() for gate in exported.gates])
    if view.registration:
        yield "production", describe_decision(view.registration)
    for entry in view.lineage:
        yield entry.name, f"sha256 {entry.sha256}" if entry.sha256 else entry.fingerprint
    for missing in view.missing:
        yield "not known", f"{missing.what}: {missing.reason}"


def _rate(profile: ProfileReport) -> str:
    try:
        return describe_rate(profile.chosen_point())
    except DataError:
        # Another program has written the report: everything else of the run is shown all the same.
        return "the choice is none of the report's points: its rate is not known"


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _text(value: str) -> Text:
    # Controls could move the cursor, or lie about what stands where.
    return Text(UNPRINTABLE.sub("\ufffd", value.replace(NBSP, " ")))


def _console(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH, highlight=False)
