"""Runs on the terminal: the list, one run, the differences of two, a profile report; and a run as JSON.

Text from a run is never interpreted as markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contracts import storage
from contracts.artifacts import ExportManifest, Finding, ProfilePoint, ProfileReport, TrainingEstimate
from contracts.artifacts.export import PARITY
from contracts.config import SPLITS, RunConfig
from contracts.errors import DataError
from contracts.goodput import count_stops
from inspection.differences import compare_runs
from inspection.headline import DECISIONS, NEXT, STATE_NOTES, headline, metric_title
from inspection.pages.quantities import NBSP, NOT_MEASURED, UNPRINTABLE, instant, seconds, several, size, usd
from inspection.runs import RunRow
from inspection.task_metrics import show_metric
from inspection.training import TIME_CLASSES
from inspection.view import RunView, StageView

# Widths for files and pipes: of a list, and of all other output, which has paths.
_LIST_WIDTH, _PLAIN_WIDTH = 120, 150
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
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
OFF = "off: training uses the default slot size and workers"


def print_runs(rows: Sequence[RunRow], stream: TextIO) -> None:
    """Print a line for each run; empty columns are omitted."""
    console = _console(stream, _LIST_WIDTH)
    metrics = {row.headline.metric for row in rows if row.headline.text("metric")}
    metric = metric_title(next(iter(metrics))) if len(metrics) == 1 else "result"
    columns: dict[str, list[Text]] = {name: [] for name in ("run", "state", "where", "age", "took", metric, "export")}
    columns |= {name: [] for name in ("preempted", "USD")}
    now = time.time()
    for row in rows:
        figures = row.headline
        title = f" {metric_title(figures.metric)}" if len(metrics) > 1 and figures.text("metric") else ""
        texts = {
            "run": f"{row.name}/{row.id}",
            "where": row.problem or row.stage or row.error,
            "age": "" if row.started_at is None else _rounded(max(0.0, now - row.started_at)),
            "took": "" if figures.wall_s is None else _rounded(figures.wall_s),
            metric: figures.text("metric") + title,
            "export": figures.text("export"),
            "preempted": figures.text("preemptions") if figures.preemptions else "",
            "USD": figures.text("cost").replace(" USD", ""),
        }
        for name, cells in columns.items():
            cells.append(_state(row.state) if name == "state" else _text(texts[name]))
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in shown:
        is_text = name in ("run", "state", "where")
        whole = name in ("run", "state", "age", "took")
        table.add_column(name, no_wrap=whole, overflow="fold", justify="left" if is_text else "right")
    for line in zip(*shown.values(), strict=True):
        table.add_row(*line)
    console.print(table)


def to_json(view: RunView) -> str:
    """Return a run with its headline as JSON, without the list of the shards' files."""
    values = view.model_dump(mode="python", exclude={"shards": {"shards"}})
    text = json.dumps({"headline": headline(view).model_dump(mode="python"), **values}, default=str)
    # JSON has no numbers that are not finite.
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1)


def print_run(view: RunView, stream: TextIO, *, messages: bool = True) -> None:
    """Print state, stages and figures of a run; `messages`: also its errors and its data's warnings."""
    console = _console(stream, _PLAIN_WIDTH)
    console.print(Text.assemble(_text(f"run {view.name}/{view.id}: "), _state(view.state)))
    for text in _head(view, errors=messages):
        console.print(_text(f"  {text}"), soft_wrap=True)
    table = Table(box=SIMPLE)
    for name in ("stage", "state", "took", "output"):
        table.add_column(name, overflow="fold", no_wrap=name == "took")
    for stage in view.stages:
        took = "" if stage.wall_s is None else seconds(stage.wall_s)
        table.add_row(_text(stage.name), _state(stage.state), _text(took), _text(_output(stage)))
    console.print(table)
    rows = list(_rows(view, warnings=messages))
    width = max((len(name) for name, _ in rows), default=0) + 1
    for name, text in rows:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), _text(text)), soft_wrap=True)
    for stage in view.stages:
        if messages and stage.error and stage.state != "running":
            style = _STYLES.get(stage.state, "")
            console.print(_text(f"stage {stage.name}: {stage.error}"), style=style, soft_wrap=True)


def print_differences(before: RunView, now: RunView, stream: TextIO) -> None:
    """Print what differs between two runs: data, configuration keys, headline figures."""
    console = _console(stream, _PLAIN_WIDTH)
    changes = compare_runs(before, now)
    if not changes:
        console.print("no difference in data, configuration and headline figures")
        return
    table = Table(box=SIMPLE)
    for name in ("", f"{before.name}/{before.id}", f"{now.name}/{now.id}"):
        table.add_column(_text(name), overflow="fold")
    for change in changes:
        table.add_row(_text(change.name), _text(change.before), _text(change.now))
    console.print(table)


def print_profile(report: ProfileReport, training: str | None, stream: TextIO) -> None:
    """Print a profile report: its points as a table, then choice, findings, and time and cost of the training.

    Raises:
        DataError: The choice is marked as measured, but is not one of the points.
    """
    console = _console(stream, _PLAIN_WIDTH)
    if report.points:
        table = Table(box=SIMPLE)
        for name in ("slot size", "workers", "samples/s per rank", "lowest to highest", "data time", ""):
            table.add_column(name, justify="right" if name else "left")
        for point in report.points:
            low, high, share = point.samples_per_s_min, point.samples_per_s_max, point.data_time_fraction
            chosen = point.settings() == report.choice.settings()
            table.add_row(
                str(point.slot_size),
                str(point.num_workers),
                point.outcome if point.samples_per_s is None else f"{point.samples_per_s:.1f}",
                "" if low is None or high is None else f"{low:.1f} to {high:.1f}",
                "" if share is None else f"{share:.0%}",
                _text("chosen" if chosen else point.reason),
            )
        console.print(table)
    lines = [("choice", describe_cut(report)), ("measured", describe_rate(report.chosen_point()))]
    lines.append(("reason", report.choice.reason))
    for finding in report.findings:
        text = "\n  ".join([finding.title, *finding.evidence, f"change: {finding.change}"])
        if finding.time_share is not None:
            text += f"\n  saves at most {finding.time_share:.0%} of a step"
        lines.append((f"finding {finding.rule}", text))
    lines += [("warning", warning) for warning in report.warnings]
    if report.wall_s is not None:
        lines.append(("effort", f"{len(report.points)} configurations end to end in {report.wall_s:.0f} s"))
    for name, text in [*lines, *([("training", training)] if training else [])]:
        console.print(_text(f"{name}: {text}"), soft_wrap=True)


def describe_training(report: ProfileReport, config: RunConfig) -> str | None:
    """Return time and cost of the training by this configuration; None if its rate was not measured.

    Epochs and price may have changed since the report was made.
    """
    epoch_samples = report.estimate.epoch_samples if report.estimate else None
    rate = report.chosen_point().samples_per_s
    nodes = max(config.resources.num_nodes, report.measured_nodes)
    if epoch_samples is None or rate is None or nodes != report.measured_nodes:
        return None
    ranks = report.ranks * nodes
    estimate = TrainingEstimate.of(config, epoch_samples=epoch_samples, samples_per_s=rate * ranks)
    cost = ""
    if estimate.usd is not None:
        per_million = estimate.usd / estimate.samples * 1e6
        cost = f", {estimate.usd:.2f} USD ({per_million:.4f} USD per million samples)"
    duration = seconds(estimate.hours * 3600).replace(NBSP, " ")
    return (
        f"{duration}{cost} for {estimate.samples} samples by {ranks} ranks; steps only, "
        "without evaluation, checkpoints and start"
    )


def describe_cut(report: ProfileReport) -> str:
    """Return the choice as text, or that nothing was measured."""
    if report.method == "off":
        return OFF
    chosen = report.choice
    cut = f"slot size {chosen.slot_size} x {chosen.slots_per_rank} per rank, {several(chosen.num_workers, 'worker')}"
    return cut if chosen.measured else f"the defaults, {NOT_MEASURED}: {cut}"


def describe_rate(point: ProfilePoint) -> str:
    """Return the rate of a point as text, without cost, since prices may have changed."""
    if point.samples_per_s is None:
        return f"{NOT_MEASURED}: {point.reason or point.outcome}"
    text = f"{point.samples_per_s:.1f} samples/s per rank"
    if point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        text += f" ({point.samples_per_s_min:.1f} to {point.samples_per_s_max:.1f})"
    text += "".join(f", {value:,.0f} {unit}/s" for unit, value in point.units_per_s.items())
    share = point.data_time_fraction
    return text if share is None else f"{text}, data time {share:.0%} of a step"


def _finding(finding: Finding) -> str:
    text = f"{finding.title} ({'; '.join(finding.evidence)}): {finding.change}"
    return text if finding.time_share is None else f"{text} (saves at most {finding.time_share:.0%} of a step)"


def _decision(register: Mapping[str, Any]) -> str:
    """Return the decision on production and its reason on one line."""
    verdict, reason = str(register.get("verdict", "")), str(register.get("reason", "")).split("\n")[0]
    resource = f" ({register['resourceName']})" if "resourceName" in register else ""
    return f"{DECISIONS.get(verdict, verdict)}: {reason}{resource}"


def _gates(exported: ExportManifest) -> str:
    """Return how many gates passed, the error of the served file, and the gates that did not pass."""
    gates = exported.gates
    passed = sum(gate.status == "passed" for gate in gates)
    not_passed = [f"{gate.precision} {gate.name} {gate.status}" for gate in gates if gate.status != "passed"]
    errors = [
        f"{gate.precision} relative error {gate.figures['relative_error']:.1e} on {gate.device or 'the CPU'}"
        for gate in gates
        if gate.name == PARITY and isinstance(gate.figures.get("relative_error"), float)
    ]
    return "; ".join([f"{passed} of {len(gates)} passed", *errors[-1:], *not_passed])


def _head(view: RunView, *, errors: bool) -> Iterator[str]:
    yield storage.display(view.folder)
    if view.console:
        yield view.console
    if view.started_at is not None:
        took = f", {seconds(view.wall_s)}" if view.wall_s is not None else ""
        yield f"started {instant(view.started_at)}{took}"
    if view.state in ("stopped", "silent", "unknown", "unreadable"):
        last = f"; last event {instant(view.last_event_at)}" if view.last_event_at else ""
        yield f"{STATE_NOTES[view.state]}{last}"
    if errors and view.state in ("failed", "interrupted") and view.error:
        # The stage's error is printed below.
        repeated = any(stage.error and stage.error in view.error for stage in view.stages)
        yield view.error.splitlines()[0] if repeated else view.error
    if view.state in NEXT:
        yield NEXT[view.state]


def _output(stage: StageView) -> str:
    if stage.state == "running" and (progress := stage.progress) is not None:
        return f"{progress.done:g} of {progress.total:g} {progress.unit} {progress.message}"
    if stage.state == "reused" and stage.reused_from:
        return f"{stage.made} (of run {stage.reused_from})"
    return stage.made


def _rows(view: RunView, *, warnings: bool) -> Iterator[tuple[str, str]]:
    for figure in headline(view).figures:
        if figure.name not in ("state", "duration") and figure.text:
            yield figure.title.lower(), figure.text + (f" ({figure.note})" if figure.note else "")
    if (shards := view.shards) is not None:
        counts = ", ".join(f"{name} {shards.splits[name].samples}" for name in SPLITS)
        classes = f"{several(len(shards.classes), 'class', 'classes')}, " if shards.classes else ""
        files = f"{several(len(shards.shards), 'shard')}, {size(sum(shards.shards.bytes))}"
        rejected = f"; {shards.count_rejected} files rejected" if shards.count_rejected else ""
        yield "data", f"{counts}; {classes}{files}{rejected}"
        texts = [*shards.warnings, *view.data_warnings] if warnings else []
        yield from (("warning", f"data: {text}") for text in texts)
    if (profile := view.profile) is not None:
        yield "profile", OFF if profile.method == "off" else f"{describe_cut(profile)}; {_rate(profile)}"
        yield from ((f"finding {finding.rule}", _finding(finding)) for finding in profile.findings)
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
        parts = {title: getattr(goodput, name) for name, title in TIME_CLASSES.items()}
        yield "time", ", ".join(f"{title} {100 * value / wall_s:.1f} %" for title, value in parts.items() if value)
    if (money := view.money) is not None and money.on_demand_usd is not None:
        yield "on demand", f"{usd(money.on_demand_usd)} for the same hours"
    if (exported := view.export) is not None:
        metric, show = exported.headline.metric, show_metric(exported.task, exported.headline.metric)
        values = ", ".join(f"{name} {show(value)}" for name, value in exported.headline_values.items())
        yield f"exported {metric_title(metric)}", f"{values} ({exported.proof_samples} test samples)"
        yield "gates", _gates(exported)
        served = exported.served_file
        yield "serves", f"{served.name} ({size(served.bytes)}, runtime {exported.runtime})"
        for latency in exported.latency:
            yield "latency", f"batch {latency.batch}: {latency.median_ms:.3f} ms ({latency.ran})"
    if view.registration:
        yield "production", _decision(view.registration)
    for missing in view.missing:
        yield "unknown", f"{missing.what}: {missing.reason}"


def _rate(profile: ProfileReport) -> str:
    try:
        return describe_rate(profile.chosen_point())
    except DataError:
        # The report was written by another program.
        return "the report has no measurement of its chosen configuration"


def _rounded(value: float) -> str:
    """Return seconds in one unit: 45 s, 12 min, 3 h, 5 d."""
    return next((f"{value / factor:.0f} {unit}" for unit, factor in _UNITS if value >= 2 * factor), f"{value:.0f} s")


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _text(value: str) -> Text:
    # Control characters could move the cursor, or change the text direction.
    return Text(UNPRINTABLE.sub("\ufffd", value.replace(NBSP, " ")))


def _console(stream: TextIO, width: int) -> Console:
    return Console(file=stream, width=None if stream.isatty() else width, highlight=False)
