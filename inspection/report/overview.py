"""Section Overview: state, error, reusable output, quality, proof, cost, differences from the previous run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from contracts import storage
from contracts.config import SPLITS
from contracts.yaml_text import Dumper
from inspection.headline import DECISIONS, NEXT, RunHeadline, headline
from inspection.pages.parts import Cell, Chip, Figure, Link, Notice, Part, Table, Text, Tiles, absent, pairs, section
from inspection.pages.quantities import count, instant, seconds, several, shorten
from inspection.pages.rendering import Html
from inspection.report.context import (
    CONSOLE,
    ENDED_EARLY,
    NO_VALUE,
    Context,
    console,
    first,
    not_finite,
    omitted,
    shown_uri,
)
from inspection.task_metrics import is_proportion, show_metric
from inspection.view import Attempt, RunView, StageView

# Rows of the table of attempts: the newest of all stages.
_MOST_ATTEMPTS = 5
# By place of the run.
_COMMANDS = {
    "local": "shardline run CONFIG",
    "vertex": "shardline submit CONFIG",
}


def overview(context: Context) -> Html:
    """Return the section."""
    return section("overview", "Overview", *_parts(context))


def _parts(context: Context) -> Iterator[Part | None]:
    view, rows = context.view, context.limits.rows
    yield from _failures(context)
    yield _tiles(context, headline(view))
    yield pairs("summary", "The run in short", list(_summary(context)))
    if warnings := [context.message(text) for text in _warnings(view)]:
        yield Notice("warning", "Warnings", [Text(first(warnings, rows, "warnings"), "list")])
    yield _stages(context) if view.stages else absent("stages", "This run has no information on its stages.")
    if attempts := [(stage, attempt) for stage in view.stages for attempt in stage.attempts]:
        attempts.sort(key=lambda pair: pair[1].started_at or 0.0)
        shown = [_attempt(context, *pair) for pair in attempts[-_MOST_ATTEMPTS:]]
        remark = omitted(len(shown), len(attempts), "attempts, earlier ones,")
        table = Table("attempts", "Starts of stages", ("Attempt", "Stage", "Started", "Ended", "Log"), shown, 5, remark)
        yield Notice("fold", f"Attempts ({len(attempts):,})", [table], "attempts-fold")
    # An unknown price has a tile.
    if missing := [each for each in view.missing if each.what != "cost"]:
        lines = [f"{context.name(each.what)}: {context.message(each.reason)}" for each in missing]
        files = Text(first(lines, 2 * rows, "files"), "list")
        yield Notice("warning", "Files that could not be read", [files], "missing")
    yield from _configuration(context)


def _tiles(context: Context, figures: RunHeadline) -> Tiles:
    view = context.view
    is_open = view.state in ("running", "silent")
    tiles: list[tuple[str, Cell, Cell]] = []
    for figure in figures.figures:
        value: Cell = Figure(
            f"overview.{figure.name}",
            figure.value if figure.text else None,
            missing="not yet" if is_open and figure.name != "cost" else "not known",
            shown=figure.text,
        )
        remark: Cell = figure.note if figure.text else ""
        if figure.name == "export" and figure.text:
            value = Chip("proven" if figures.is_proven else "unproven", figure.text)
        elif figure.name == "cost" and not figure.text:
            remark = next((context.message(each.reason) for each in view.missing if each.what == "cost"), "")
        elif figure.name == "metric":
            remark = figure.note or _validation(view)
        if figure.name != "state":
            tiles.append((figure.title, value, remark))
    return Tiles(tiles)


def _validation(view: RunView) -> str:
    """Return the newest validation metric of a training in progress."""
    curves = [curve for curve in view.curves if curve.name.startswith("validation/") and curve.values]
    curves.sort(key=lambda curve: not is_proportion(view.task, curve.name.partition("/")[2]))
    texts = (
        f"{shorten(curve.name, 60)} {show_metric(view.task, curve.name)(curve.values[-1])} at step {curve.steps[-1]:,}"
        for curve in curves
    )
    return next(texts, "")


def _failures(context: Context) -> Iterator[Notice]:
    view = context.view
    stages = [stage for stage in view.stages if stage.state in ENDED_EARLY and stage.error]
    for stage in stages:
        yield _failure(context, f"Stage {stage.name}", stage.state, stage.error, stage.name)
    if view.error and not any(view.error.startswith((f"stage {stage.name}: ", stage.error)) for stage in stages):
        yield _failure(context, "The run", view.state, view.error, "run")


def _failure(context: Context, subject: str, state: str, error: str, name: str) -> Notice:
    """Return an error in full, with allowed values and remedy."""
    end = {"interrupted": "was interrupted", "stopped": "was stopped"}.get(state, "failed")
    title = Chip(state if state in ENDED_EARLY else "failed", f"{subject} {end}")
    severity = "bad" if end == "failed" else "warning"
    return Notice(severity, [title], [Text(context.message(error), "pre")], f"error-{name}")


def _summary(context: Context) -> Iterator[tuple[str, Cell]]:
    view = context.view
    if view.state != "succeeded":
        yield "Kept", _kept(view)
    if (text := NEXT.get(view.state, "")) and view.state in ENDED_EARLY:
        command = Text(_COMMANDS[view.place], "code")
        yield "Next", Text([Text(text, "strong"), ": ", command, ", with the same overrides"])
    elif text := text or _next_of_export(view):
        yield "Next", Text(text, "strong")
    last = next((stage for stage in reversed(view.stages) if stage.attempts), None)
    if last is not None and (links := _logs(context, last.attempts[-1])):
        yield "Log", Text([f"stage {last.name}: ", *links])
        if last.attempts[-1].last_messages and view.state != "succeeded":
            yield "Last messages", Text(context.message(last.attempts[-1].last_messages), "code")
    if view.registration:
        reason = str(view.registration.get("reason", "")).partition("\n")[0]
        verdict = str(view.registration.get("verdict", ""))
        yield "Production", context.name(": ".join(filter(None, (DECISIONS.get(verdict, verdict), reason))))
    if view.previous is not None:
        yield "Since the run before", _difference(context)
    yield from _facts(view)


def _kept(view: RunView) -> str:
    """Return the output that the next run can reuse after an unsuccessful one."""
    finished = [stage.name for stage in view.stages if stage.state in ("done", "reused")]
    texts = [f"output of {', '.join(finished)}"] if finished else []
    train = view.stage("train")
    if train is not None and train.state not in ("done", "reused"):
        steps = [mark.step for mark in view.marks if mark.kind in ("checkpoint", "best") and mark.step is not None]
        if steps:
            texts.append(f"training up to its checkpoint of step {max(steps):,}")
    return "; ".join(texts) or "nothing yet"


def _next_of_export(view: RunView) -> str:
    if view.state != "succeeded" or view.export is None:
        return ""
    if headline(view).is_proven:
        return "" if view.registration else f"shardline promote {_argument(view.folder)}"
    engine = view.export.engine
    if engine is None:
        return "To prove it: export.runtime=tensorrt on the GPU that serves"
    return f"To prove it: shardline verify {_argument(view.folder)}, on a GPU of {engine.target}"


def _argument(folder: str) -> str:
    """Return a run's folder as a quoted shell argument."""
    return shlex.quote(shown_uri(folder))


def _difference(context: Context) -> Cell:
    previous = context.view.previous
    assert previous is not None
    of = context.name(previous.id)
    if not previous.changes:
        return f"no difference to {of}" if previous.data_known else f"configuration of {of}; its data is unknown"
    texts = [
        f"{context.name(each.name)} {context.name(each.before) or NO_VALUE} \u2192 {context.name(each.now) or NO_VALUE}"
        for each in previous.changes[:3]
    ]
    folders = [storage.join(context.view.folder.rpartition("/")[0], previous.id), context.view.folder]
    more = f"; all {len(previous.changes):,}: shardline inspect {' '.join(map(_argument, folders))}"
    return f"{'; '.join(texts)}{more if len(previous.changes) > len(texts) else ''} (run {of})"


def _facts(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield data, network, training and machine of the run."""

    def keys(name: str) -> dict[str, Any]:
        value = view.config.get(name)
        return value if isinstance(value, dict) else {}

    train, resources, trained = keys("train"), keys("resources"), view.checkpoint
    data = [f"from {keys('sharding').get('source')}" if keys("sharding").get("source") else ""]
    if view.shards is not None:
        samples = ", ".join(f"{name} {view.shards.splits[name].samples:,}" for name in SPLITS)
        classes = several(len(view.shards.classes), "class", "classes") if view.shards.classes else ""
        data = [f"samples: {samples}", classes, *data]
    yield "Data", _join(data)
    model = trained.model if trained is not None else keys("model")
    weights = f"weights from {model['weights']}" if model.get("weights") else "random weights at the start"
    if trained is not None and trained.initial is not None:
        weights = trained.initial.in_words()
    arguments = model.get("arguments")
    flat = (f"{key}={value}" for key, value in arguments.items()) if isinstance(arguments, dict) else ()
    yield "Network", _join([view.task, str(model.get("architecture") or ""), *flat, weights if model else ""])
    forms = {
        "epochs": "{} epochs",
        "max_steps": "at most {} steps",
        "global_batch_size": "global batch {}",
        "optimizer": "{}",
        "learning_rate": "learning rate {}",
        "precision": "{}",
    }
    yield "Training", _join([form.format(train[key]) for key, form in forms.items() if train.get(key) is not None])
    environment = trained.environment if trained is not None else {}
    machine = resources.get("machine")
    values = machine.values() if isinstance(machine, dict) else ()
    # A local run's configuration may name the machine of another place.
    parts = ["local machine"] if view.place == "local" else [str(value) for value in values if value]
    parts += [str(resources.get("strategy") or "").lower() if view.place == "vertex" else ""]
    parts += [f"{environment['ranks']} ranks" if "ranks" in environment else "", environment.get("device", "")]
    yield "Machine", _join([*parts, f"own code {keys('code')['path']}" if keys("code").get("path") else ""])


def _join(texts: list[str]) -> str:
    return shorten(", ".join(filter(None, texts)), 400) or NO_VALUE


def _warnings(view: RunView) -> list[str]:
    texts = [f"data: {text}" for text in [*(view.shards.warnings if view.shards else ()), *view.data_warnings]]
    texts += [f"training: {text}" for text in not_finite(view.curves)]
    if (document := view.export) is not None and document.asked_precision != document.precision:
        texts.append(f"export: {document.asked_precision} failed its gates; {document.precision} is exported")
    return texts


def _stages(context: Context) -> Table:
    stages = context.view.stages
    head = ("Stage", "State", "Output", "Log", "Time", "Cost")
    return Table("stages", "Stages of this run", head, [_stage(context, stage) for stage in stages], 4)


def _stage(context: Context, stage: StageView) -> tuple[Cell, ...]:
    name, output = context.name(stage.name), stage.error.partition("\n")[0] or stage.made
    lines: list[Cell] = [context.name(output) or NO_VALUE]
    if stage.state == "running" and (progress := stage.progress) is not None:
        text = f"{count(progress.done)} of {count(progress.total)} {progress.unit}: {context.name(progress.message)}"
        lines = [text, Text(f"at {instant(progress.at)}", "small")]
    if stage.uri is not None:
        # The console has different pages for folders and objects.
        is_remote = stage.uri.startswith("gs://")
        lines.append(context.link(f"{stage.uri.rstrip('/')}/" if is_remote else stage.uri, "folder"))
    state: list[Cell] = [Chip(stage.state)]
    if stage.state == "reused":
        origin = f"run {context.name(stage.reused_from)}" if stage.reused_from else "an earlier start"
        state.append(Text(f"from {origin}", "small"))
    time: list[Cell] = [Figure(f"stages.{name}.wall_s", stage.wall_s, "seconds", NO_VALUE)]
    if stage.start_s is not None and 0 < stage.start_s < math.inf:
        time.append(Text(f"start-up {seconds(stage.start_s)}", "small"))
    logs = _logs(context, stage.attempts[-1]) if stage.attempts else []
    money = context.view.money if stage.name == "train" and stage.state != "reused" else None
    cost = NO_VALUE if money is None else Figure(f"stages.{name}.cost", money.cost_usd, "usd")
    return name, tuple(state), tuple(lines), Text(logs) if logs else NO_VALUE, tuple(time), cost


def _attempt(context: Context, stage: StageView, attempt: Attempt) -> tuple[Cell, ...]:
    is_open = attempt is stage.attempts[-1] and stage.state == "running"
    ended = "running" if is_open else "no end was recorded"
    if attempt.exit_code is not None:
        at = f", {instant(attempt.ended_at)}" if attempt.ended_at is not None else ""
        ended = f"exit code {attempt.exit_code}{at}"
    return (
        Text(context.name(attempt.name), "code"),
        context.name(stage.name),
        instant(attempt.started_at) if attempt.started_at is not None else NO_VALUE,
        (ended, Text(context.name(attempt.error.partition("\n")[0]), "small")),
        Text(_logs(context, attempt)),
    )


def _logs(context: Context, attempt: Attempt) -> list[Cell]:
    """Return links to an attempt's log; on Vertex AI, to its folder and the run's page, which has the logs."""
    if attempt.log is not None:
        return [context.link(attempt.log, "log")]
    address, page = console(f"{attempt.folder.rstrip('/')}/"), context.view.console
    if address is None:
        return []
    service: list[Cell] = [", ", Link("logs, by the run's page", page)] if page and page.startswith(CONSOLE) else []
    return [Link("folder", address), *service]


def _configuration(context: Context) -> Iterator[Part | None]:
    config, limit = context.view.config, context.limits.config
    if not config:
        yield absent("configuration", "The configuration is unknown: the run's record could not be read.")
        return
    text = yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    parts, remark = [Text(shorten(text, limit), "pre")], omitted(limit, len(text), "characters")
    parts += [Text(remark, "note")] if remark else []
    yield Notice("fold", "Configuration (defaults, file, overrides)", parts, "configuration")
