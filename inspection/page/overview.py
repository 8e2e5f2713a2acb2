"""How a run stands: its headline, what failed, warnings, what differs from the run before, what was run, its stages."""

from __future__ import annotations

from contracts.endings import ASKS_AGAIN
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from inspection.page.facts import facts
from inspection.page.links import console, console_page, make_link
from inspection.page.subject import Subject, left_out
from inspection.run.headline import NEXT, RunHeadline, headline
from inspection.run.view import AttemptView, RunView, StageState, StageView
from pages.links import Link
from pages.markup import Html
from pages.quantities import several
from pages.rendering import render
from pages.run.overview import Attempt, Change, Failure, OverviewSection, Progress, Stage, Tile

_EXITS = {
    EXIT_OK: "finished",
    EXIT_CHECK_FAILED: "a check failed",
    EXIT_USER_ERROR: "user error: not tried again",
    EXIT_FAULT: "a fault",
    **dict.fromkeys(ASKS_AGAIN, "asked for another attempt"),
}


def overview(subject: Subject) -> Html:
    """Return the section that stands first."""
    view, rows = subject.view, subject.limits.rows
    found = headline(view)
    attempts = [(stage, attempt) for stage in view.stages for attempt in stage.attempts]
    # The newest say most: how it ended.
    shown = attempts[-subject.limits.attempts :]
    changes = view.before.changes if view.before is not None else []
    return render(
        OverviewSection(
            tiles=_tiles(found),
            # A run that goes on may bring what is not there.
            pending="not yet" if found.state in ("running", "silent") else "none",
            failures=tuple(_failures(subject)),
            warnings=tuple(subject.reason(text) for text in _warnings(view)[:rows]),
            before=subject.name(view.before.id) if view.before is not None else "",
            data_known=view.before is None or view.before.data_known,
            changes=tuple(
                Change(subject.name(each.name), subject.name(each.before), subject.name(each.now))
                for each in changes[:rows]
            ),
            changes_left_out=left_out(min(rows, len(changes)), len(changes), "differences"),
            facts=facts(view),
            stages=tuple(_stage(subject, stage) for stage in (*view.stages, *_register(view))),
            attempts=tuple(_attempt(subject, stage, attempt) for stage, attempt in shown),
            attempts_left_out=left_out(len(shown), len(attempts), "attempts, all older ones,"),
            all_attempts=len(attempts),
        )
    )


def _tiles(found: RunHeadline) -> tuple[Tile, ...]:
    values: dict[str, float | None] = {
        "metric": found.metric_value,
        "duration": found.wall_s,
        "goodput": found.goodput_percent,
        "preemptions": found.preemptions,
        "cost": found.cost_high_usd,
    }
    states = {"state": found.state, "export": found.verdict}
    unknown = {"cost": "see “Time and money”"}
    return tuple(
        Tile(
            name=each.name,
            title=each.title,
            value=values.get(each.name) if each.text else None,
            text=each.text,
            note=each.note if each.text else unknown.get(each.name, ""),
            state=states.get(each.name, ""),
        )
        for each in found.figures
        # Of a run that ended early only what is known.
        if each.text or found.state in ("running", "silent", "succeeded")
    )


def _failures(subject: Subject) -> list[Failure]:
    view = subject.view
    failed = [stage for stage in view.stages if stage.state in ("failed", "interrupted", "stopped") and stage.error]
    found = [
        _failure(
            subject,
            f"Stage {stage.name}",
            stage.state,
            stage.error,
            stage.name,
            _logs(subject, stage.attempts[-1]) if stage.attempts else (),
        )
        for stage in failed
    ]
    if view.error and view.error not in {stage.error for stage in failed}:
        found.append(_failure(subject, "The run", view.state, view.error, "run"))
    return found


def _failure(subject: Subject, what: str, state: str, error: str, name: str, logs: tuple[Link, ...] = ()) -> Failure:
    """Return an error in full: what was given, what is allowed, what to do."""
    said, rest = [], []
    for line in subject.reason(error).splitlines():
        key, colon, value = line.strip().partition(": ")
        if colon and key in ("allowed", "to do"):
            rest.append((key, value))
        else:
            said.append(line)
    ended = "was interrupted" if state == "interrupted" else state
    return Failure(name, f"{what} {ended}", "\n".join(said), tuple(rest), logs, NEXT.get(subject.view.state, ""))


def _warnings(view: RunView) -> list[str]:
    """Return what the stages have remarked."""
    data, report, trained, exported = view.data, view.data_report, view.checkpoint, view.export
    found = [f"data: {text}" for text in (data.warnings if data is not None else ())]
    found += [f"data: {text}" for text in (*report.problems, *report.warnings)] if report is not None else []
    found += [f"training: {text}" for text in (trained.warnings if trained is not None else ())]
    found += [
        f"training: {curve.name} has {several(curve.not_finite, 'value')} that are no finite number, the first at step "
        f"{curve.first_not_finite:,}"
        for curve in (view.curves.curves if view.curves is not None else ())
        if curve.not_finite
    ]
    if exported is not None and exported.asked_precision != exported.precision:
        found.append(f"export: {exported.asked_precision} was refused by its gates; {exported.precision} is exported")
    return found


def _stage(subject: Subject, stage: StageView) -> Stage:
    made, progress = stage.made, stage.progress if stage.state == "running" else None
    if not made and stage.state == "failed" and stage.error:
        made = stage.error.splitlines()[0]
    money = subject.view.money if stage.name == "train" and stage.state != "reused" else None
    by = {"reused": "an earlier run", "done": "this run", "running": "this run"}
    return Stage(
        name=subject.name(stage.name),
        state=stage.state,
        made=subject.name(made),
        folder=_folder(subject, stage.uri, "folder") if stage.uri is not None else None,
        progress=Progress(progress.done, progress.total, progress.unit, subject.name(progress.message), progress.at)
        if progress is not None
        else None,
        wall_s=stage.wall_s,
        start_s=stage.start_s,
        cost_usd=(money.cost_low_usd, money.cost_high_usd) if money is not None else None,
        cache=by.get(stage.state, ""),
        logs=_logs(subject, stage.attempts[-1]) if stage.attempts else (),
    )


def _register(view: RunView) -> list[StageView]:
    """Return the model registry's task as one more row, where the run has it: a pipeline's last, and no stage."""
    found, vertex = view.registration, view.config.get("vertex")
    model = vertex.get("model") if isinstance(vertex, dict) else None
    asked = view.place == "vertex" and isinstance(model, dict) and model.get("upload") is True
    if view.stage("register") is not None or not (found or asked):
        return []
    open_ = view.state in ("running", "silent")
    if not found:
        return [StageView(name="register", state="waiting" if open_ else "not started")]
    if found.get("verdict") == "refuse":
        why = found.get("unproven")
        words = ", ".join(map(str, why)) if isinstance(why, list) else ""
        return [StageView(name="register", state="done", made=f"refused, unproven: {words}".rstrip(": "))]
    if found.get("upload"):
        return [StageView(name="register", state="done", made="uploaded to the model registry")]
    ended: StageState = view.state if view.state in ("failed", "interrupted", "stopped") else "not started"
    state: StageState = "running" if open_ else ended
    return [StageView(name="register", state=state, made="admitted; no upload is known")]


def _attempt(subject: Subject, stage: StageView, attempt: AttemptView) -> Attempt:
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
    return Attempt(
        name=subject.name(attempt.name),
        stage=subject.name(stage.name),
        ended=ended,
        error=subject.name(attempt.error.splitlines()[0]) if attempt.error else "",
        logs=_logs(subject, attempt),
        started_at=attempt.started_at,
        took_s=took,
    )


def _logs(subject: Subject, attempt: AttemptView) -> tuple[Link, ...]:
    """Return where an attempt's words are: on Vertex AI the service keeps them, and the run's page there leads on."""
    if attempt.log is not None:
        return (make_link(subject.href, attempt.log, "log"),)
    address = console(f"{attempt.folder.rstrip('/')}/")
    if address is None:
        return ()
    opened = console_page(subject.view.console)
    service = (Link("logs, by the run's page", opened),) if opened is not None else ()
    return (Link("folder", address), *service)


def _folder(subject: Subject, uri: str, words: str) -> Link:
    """Return a link to a folder: Google's console has other pages for them than for objects."""
    return make_link(subject.href, f"{uri.rstrip('/')}/" if uri.startswith("gs://") else uri, words)
