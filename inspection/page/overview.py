"""How a run stands: its headline, what failed, warnings, what differs from the run before, what was run, its stages."""

from __future__ import annotations

import math
from collections.abc import Iterator

from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from contracts.process import ASKS_AGAIN
from inspection.page.facts import facts
from inspection.page.links import console, console_page, make_link
from inspection.page.subject import NO_VALUE, Subject, left_out
from inspection.report import describe_decision
from inspection.run.headline import NEXT, RunHeadline, headline
from inspection.run.headline import Figure as HeadlineFigure
from inspection.run.view import AttemptView, RunView, StageView
from pages.markup import Html
from pages.parts import (
    Cell,
    Chip,
    Figure,
    Fold,
    Inline,
    Link,
    Listing,
    Notice,
    Pairs,
    Part,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    absent,
    section,
)
from pages.quantities import count, instant, several

_EXITS = {
    EXIT_OK: "finished",
    EXIT_CHECK_FAILED: "a check failed",
    EXIT_USER_ERROR: "user error: not tried again",
    EXIT_FAULT: "a fault",
    **dict.fromkeys(ASKS_AGAIN, "asked for another attempt"),
}


def overview(subject: Subject) -> Html:
    """Return the section that stands first."""
    return section("overview", "Overview", *_parts(subject))


def _parts(subject: Subject) -> Iterator[Part]:
    view, rows = subject.view, subject.limits.rows
    yield _tiles(headline(view))
    yield from _failures(subject)
    if warnings := [subject.reason(text) for text in _warnings(view)[:rows]]:
        yield Notice("warning", "Warnings", [Listing(warnings, "warnings")])
    if view.before is not None:
        yield Title("What differs from the run before")
        yield _changes(subject)
    if known := facts(view):
        yield Title("What was run")
        yield Pairs(known, "facts")
    yield Title("Stages")
    stages = [*view.stages, *_register(view)]
    head: tuple[str, ...] = ("Stage", "State", "What it made", "Done by", "Log", "Time", "Cost")
    yield (
        Table(
            "stages",
            "Stages of this run",
            head,
            [_stage(subject, stage) for stage in stages],
            5,
            data=[{"stage": subject.name(stage.name), "state": stage.state} for stage in stages],
        )
        if stages
        else absent("stages", "Nothing is known of this run's stages.")
    )
    if attempts := [(stage, attempt) for stage in view.stages for attempt in stage.attempts]:
        # The newest say most: how it ended.
        shown = attempts[-subject.limits.attempts :]
        more = left_out(len(shown), len(attempts), "attempts, all older ones,")
        head = ("Attempt", "Stage", "Ended", "Log", "Started", "Took")
        table = [_attempt(subject, place, *each) for place, each in enumerate(shown)]
        title = f"Attempts ({len(attempts):,})"
        yield Fold(title, [Table("attempts", "Every start of a stage", head, table, 4, more)], "attempts-all")


def _tiles(found: RunHeadline) -> Tiles:
    values: dict[str, float | None] = {
        "metric": found.metric_value,
        "duration": found.wall_s,
        "goodput": found.goodput_percent,
        "preemptions": found.preemptions,
        "cost": found.cost_usd,
    }
    is_open = found.state in ("running", "silent")

    def tile(each: HeadlineFigure) -> Tile:
        shown: Cell = Chip(found.state)
        if each.name == "export" and each.text:
            shown = Words(each.text, name="overview.export", shape="proven" if found.is_proven else "unproven")
        elif each.name != "state":
            # A run that goes on may bring what is not there.
            missing = "not known" if each.name == "cost" else "not yet" if is_open else "none"
            value = values.get(each.name) if each.text else None
            shown = Figure(f"overview.{each.name}", value, missing=missing, shown=each.text)
        note = "see “Time and money”" if each.name == "cost" and not each.text else ""
        return Tile(each.title, shown, each.note if each.text else note)

    # Of a run that ended early only what is known.
    shown = [each for each in found.figures if each.text or is_open or found.state == "succeeded"]
    return Tiles([tile(each) for each in shown], "head")


def _failures(subject: Subject) -> Iterator[Notice]:
    view = subject.view
    failed = [stage for stage in view.stages if stage.state in ("failed", "interrupted", "stopped") and stage.error]
    for stage in failed:
        logs = _logs(subject, stage.attempts[-1]) if stage.attempts else []
        yield _failure(subject, f"Stage {stage.name}", stage.state, stage.error, stage.name, logs)
    told = {text for stage in failed for text in (stage.error, f"stage {stage.name}: {stage.error}")}
    if view.error and view.error not in told:
        yield _failure(subject, "The run", view.state, view.error, "run", [])


def _failure(subject: Subject, what: str, state: str, error: str, name: str, logs: list[Cell]) -> Notice:
    """Return an error in full: what was given, what is allowed, what to do."""
    said: list[str] = []
    rest: list[tuple[str, Cell]] = []
    for line in subject.reason(error).splitlines():
        key, colon, value = line.strip().partition(": ")
        if colon and key in ("allowed", "to do"):
            rest.append((key, Words(value, style="strong") if key == "to do" else value))
        else:
            said.append(line)
    rest += [("then", then)] if (then := NEXT.get(subject.view.state, "")) else []
    rest += [("log", Inline(logs))] if logs else []
    parts: list[Part] = [Text("\n".join(said), "said"), *([Pairs(rest)] if rest else [])]
    ended = "was interrupted" if state == "interrupted" else state
    return Notice("bad", f"{what} {ended}", parts, "▲ failed", {"error": name})


def _changes(subject: Subject) -> Table | Text:
    before, rows = subject.view.before, subject.limits.rows
    assert before is not None
    of = subject.name(before.id)
    if before.changes:
        shown = [
            (
                Words(subject.name(each.name), style="code"),
                subject.name(each.before) or NO_VALUE,
                subject.name(each.now) or NO_VALUE,
            )
            for each in before.changes[:rows]
        ]
        more = left_out(len(shown), len(before.changes), "differences")
        return Table("changes", f"Since run {of}", ("What", "Before", "Now"), shown, 3, more)
    said = f"Nothing: configuration and data are those of run {of}."
    if not before.data_known:
        said = f"Nothing that is known: the configuration is that of run {of}; whether the data is, is not known."
    return Text(said, "calm")


def _warnings(view: RunView) -> list[str]:
    """Return what the stages have remarked."""
    data, exported = view.data, view.export
    found = [f"data: {text}" for text in (data.warnings if data is not None else ())]
    found += [
        f"training: {curve.name} has {several(curve.not_finite, 'value')} that are no finite number, the first at step "
        f"{curve.first_not_finite:,}"
        for curve in (view.curves.curves if view.curves is not None else ())
        if curve.not_finite
    ]
    if exported is not None and exported.asked_precision != exported.precision:
        found.append(f"export: {exported.asked_precision} was refused by its gates; {exported.precision} is exported")
    return found


def _stage(subject: Subject, stage: StageView) -> tuple[Cell, ...]:
    made, name = stage.made, subject.name(stage.name)
    if not made and stage.state == "failed" and stage.error:
        made = stage.error.splitlines()[0]
    money = subject.view.money if stage.name == "train" and stage.state != "reused" else None
    by = {"reused": "an earlier run", "done": "this run", "running": "this run"}
    done: list[Cell] = [subject.name(made) or NO_VALUE]
    if stage.state == "running" and (at := stage.progress) is not None:
        said = f"{count(at.done)} of {count(at.total)} {at.unit}: {subject.name(at.message)}"
        done = [Words(said, f"at {instant(at.at)}", name=f"stages.{name}.progress")]
    if stage.uri is not None:
        done.append(_folder(subject, stage.uri, "folder"))
    logs = _logs(subject, stage.attempts[-1]) if stage.attempts else []
    time: list[Cell] = [Figure(f"stages.{name}.wall_s", stage.wall_s, "seconds", NO_VALUE)]
    if stage.start_s is not None and 0 < stage.start_s < math.inf:
        start = Figure(f"stages.{name}.start_s", stage.start_s, "seconds")
        time.append(Inline([Words("of which start-up ", style="small"), start]))
    return (
        name,
        Chip(stage.state),
        tuple(done),
        # Empty: it has made nothing.
        by.get(stage.state, NO_VALUE),
        Inline(logs) if logs else NO_VALUE,
        tuple(time),
        NO_VALUE if money is None else Figure(f"stages.{name}.cost", money.cost_usd, "usd"),
    )


def _register(view: RunView) -> list[StageView]:
    """Return the model registry's task as one more row, where the run has it: a pipeline's last, and no stage."""
    found, section = view.registration, view.config.get("register")
    asked = view.place == "vertex" and isinstance(section, dict) and section.get("upload") is True
    if view.stage("register") is not None or not (found or asked):
        return []
    if not found:
        waits = view.state in ("running", "silent")
        return [StageView(name="register", state="waiting" if waits else "not started")]
    return [StageView(name="register", state="done", made=describe_decision(found))]


def _attempt(subject: Subject, place: int, stage: StageView, attempt: AttemptView) -> tuple[Cell, ...]:
    if attempt.exit_code is None:
        ended = "no end was recorded"
        # Dataflow's service ends its jobs itself: nothing tells of it.
        if attempt is stage.attempts[-1] and stage.state == "running":
            ended = "running"
    else:
        ended = f"{_EXITS.get(attempt.exit_code, 'ended')} (exit code {attempt.exit_code})"
    took = None
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = max(0.0, attempt.ended_at - attempt.started_at)
    logs = _logs(subject, attempt)
    why = subject.name(attempt.error.splitlines()[0]) if attempt.error else ""
    return (
        Words(subject.name(attempt.name), style="code"),
        subject.name(stage.name),
        (ended, Words(why, style="small")) if why else ended,
        Inline(logs) if logs else NO_VALUE,
        instant(attempt.started_at) if attempt.started_at is not None else NO_VALUE,
        Figure(f"attempts.{place}.took_s", took, "seconds", NO_VALUE),
    )


def _logs(subject: Subject, attempt: AttemptView) -> list[Cell]:
    """Return where an attempt's words are: on Vertex AI the service keeps them, and the run's page there leads on."""
    if attempt.log is not None:
        return [make_link(subject.href, attempt.log, "log")]
    address = console(f"{attempt.folder.rstrip('/')}/")
    if address is None:
        return []
    opened = console_page(subject.view.console)
    service: list[Cell] = [", ", Link("logs, by the run's page", opened)] if opened is not None else []
    return [Link("folder", address), *service]


def _folder(subject: Subject, uri: str, words: str) -> Link:
    """Return a link to a folder: Google's console has other pages for them than for objects."""
    return make_link(subject.href, f"{uri.rstrip('/')}/" if uri.startswith("gs://") else uri, words)
