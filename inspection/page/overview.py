"""How a run stands: its headline figures, the graph of its stages, what failed and what to do, and every attempt."""

from __future__ import annotations

from functools import partial

from contracts.endings import ASKS_AGAIN
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from inspection.page.dag import dag
from inspection.page.links import console, console_page, folder_link, link
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.headline import Figure, FigureName, headline
from inspection.run.view import AttemptView, StageView
from pages.markup import Html, bar, element, figure, join, section, table
from pages.quantities import count, instant, seconds, several
from pages.state import chip, shape

_EXITS = {
    EXIT_OK: "finished",
    EXIT_CHECK_FAILED: "said no",
    EXIT_USER_ERROR: "user error: not tried again",
    EXIT_FAULT: "a fault",
    **dict.fromkeys(ASKS_AGAIN, "asked for another attempt"),
}


def overview(subject: Subject) -> Html:
    """Return the section that stands first."""
    return section(
        "overview",
        "Overview",
        _headline(subject),
        *_failures(subject),
        _warnings(subject),
        element("h3", "Stages"),
        dag(subject),
        _progress(subject),
        _stages(subject),
        _attempts(subject),
    )


def _headline(subject: Subject) -> Html:
    found = headline(subject.view)
    # A run that goes on may bring what is not there.
    pending = "not yet" if found.state in ("running", "silent") else "none"
    values: dict[FigureName, float | None] = {
        "metric": found.metric_value,
        "duration": found.wall_s,
        "goodput": found.goodput_percent,
        "preemptions": found.preemptions,
        "cost": found.cost_high_usd,
    }
    tiles = []
    for each in found.figures:
        shown = figure(f"overview.{each.name}", values.get(each.name), partial(_text_of, each), pending)
        if each.name == "state":
            shown = chip(found.state)
        elif each.name == "export" and each.text:
            shown = join([element("span", each.text, data_text="overview.export"), " ", shape(found.verdict)])
        elif each.name == "cost" and not each.text:
            shown = element("span", "not known", class_="missing", data_figure="overview.cost", data_missing=True)
        note = each.note if each.text else "see “Time and money”" if each.name == "cost" else ""
        tiles.append(tile(each.title, shown, note))
    return element("div", *tiles, class_="tiles head")


def _text_of(figure: Figure, _: float) -> str:
    return figure.text


def _failures(subject: Subject) -> list[Html]:
    failed = [
        stage for stage in subject.view.stages if stage.state in ("failed", "interrupted", "stopped") and stage.error
    ]
    parts = [
        _failure(subject, f"Stage {stage.name} {_ended(stage.state)}", stage.error, stage.name) for stage in failed
    ]
    known = {stage.error for stage in failed}
    if subject.view.error and subject.view.error not in known:
        parts.append(_failure(subject, f"The run {_ended(subject.view.state)}", subject.view.error, "run"))
    return parts


def _warnings(subject: Subject) -> Html:
    """Return what was remarked about the data, and what the task could not learn from."""
    data, trained = subject.view.data, subject.view.checkpoint
    found = [f"data: {text}" for text in (data.warnings if data is not None else ())]
    found += [f"training: {text}" for text in (trained.warnings if trained is not None else ())]
    found += [
        f"training: {curve.name} has {several(curve.not_finite, 'value')} that are no finite number, the first at step "
        f"{curve.first_not_finite:,}"
        for curve in (subject.view.curves.curves if subject.view.curves is not None else ())
        if curve.not_finite
    ]
    if not found:
        return Html("")
    items = [element("li", subject.reason(text)) for text in found[: subject.limits.rows]]
    return join([element("h3", "Warnings"), element("ul", *items, id="warnings")])


def _ended(state: str) -> str:
    return "was interrupted" if state == "interrupted" else state


def _failure(subject: Subject, title: str, error: str, name: str) -> Html:
    """Return an error in full: what was given, what is allowed, what to do."""
    said, rest = [], []
    for line in subject.reason(error).splitlines():
        stripped = line.strip()
        key = next((key for key in ("allowed", "to do") if stripped.startswith(f"{key}: ")), None)
        if key is not None:
            value = stripped.removeprefix(f"{key}: ")
            rest.append((key, element("strong", value) if key == "to do" else value))
        else:
            said.append(line)
    parts = [element("h3", element("span", "▲ failed", class_="sign bad"), title)]
    parts.append(element("p", "\n".join(said), class_="said"))
    if rest:
        pairs = [join([element("dt", key), element("dd", value)]) for key, value in rest]
        parts.append(element("dl", *pairs))
    return element("article", *parts, class_="finding bad", data_error=name)


def _progress(subject: Subject) -> Html:
    parts = []
    for stage in subject.view.stages:
        found = stage.progress
        if stage.state != "running" or found is None:
            continue
        share = found.done / found.total if found.total > 0 else None
        words = f"{count(found.done)} of {count(found.total)} {found.unit}"
        parts.append(
            element(
                "p",
                element("strong", stage.name),
                f" {words}: {subject.name(found.message)} ",
                element("small", f"at {instant(found.at)}"),
                bar(share),
                class_="progress",
                data_progress=stage.name,
            )
        )
    return join(parts)


def _stages(subject: Subject) -> Html:
    rows = [_stage_row(subject, stage) for stage in subject.view.stages]
    if not rows:
        return Html("")
    head = ["Stage", "State", "What it made", "Wall time", "Of it, starts"]
    return table("What each stage did for this run", head, rows, id_="stages", words=3)


def _stage_row(subject: Subject, stage: StageView) -> list[str]:
    made: list[str] = [element("span", subject.name(stage.made) or NO_VALUE)]
    if stage.uri is not None:
        made.append(element("small", folder_link(subject.href, stage.uri, "folder"), class_="block-line"))
    return [
        stage.name,
        chip(stage.state),
        join(made),
        figure(f"stages.{stage.name}.wall_s", stage.wall_s, seconds, NO_VALUE),
        figure(f"stages.{stage.name}.start_s", stage.start_s, seconds, NO_VALUE),
    ]


def _attempts(subject: Subject) -> Html:
    found = [(stage, attempt) for stage in subject.view.stages for attempt in stage.attempts]
    if not found:
        return Html("")
    # The newest say most: how it ended.
    shown = found[-subject.limits.attempts :]
    rows = [_attempt_row(subject, place, stage, attempt) for place, (stage, attempt) in enumerate(shown)]
    head = ["Attempt", "Stage", "Ended", "Log", "Started", "Took"]
    note = left_out(len(shown), len(found), "attempts, all older ones,")
    whole = table("Every start of a stage", head, rows, id_="attempts", words=4, note=note)
    many = f"Attempts ({len(found):,})"
    return element("details", element("summary", many), whole, id="attempts-all", open=len(found) <= 12)


def _attempt_row(subject: Subject, place: int, stage: StageView, attempt: AttemptView) -> list[str]:
    if attempt.exit_code is None:
        last = stage.attempts and attempt is stage.attempts[-1]
        ended = "without a word"
        if last and stage.state in ("running", "done"):
            # Dataflow's service ends its jobs itself: nothing tells of it.
            ended = "runs" if stage.state == "running" else "its end was not told"
    else:
        ended = f"{_EXITS.get(attempt.exit_code, 'ended')} (exit code {attempt.exit_code})"
    took = None
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = max(0.0, attempt.ended_at - attempt.started_at)
    words: list[str] = [ended]
    if attempt.error:
        words.append(element("small", subject.name(attempt.error.splitlines()[0]), class_="block-line"))
    return [
        element("code", subject.name(attempt.name)),
        stage.name,
        join(words),
        _log(subject, attempt),
        instant(attempt.started_at) if attempt.started_at is not None else NO_VALUE,
        figure(f"attempts.{place}.took_s", took, seconds, NO_VALUE),
    ]


def _log(subject: Subject, attempt: AttemptView) -> Html:
    """Return where an attempt's words are: on Vertex AI the service keeps them, and the run's page there leads on."""
    if attempt.log is not None:
        return element("small", link(subject.href, attempt.log, "log"))
    address = console(f"{attempt.folder.rstrip('/')}/")
    if address is None:
        return Html("none")
    opened = console_page(subject.view.console)
    whole = [element("a", "folder", href=address)]
    if opened is not None:
        whole.append(element("a", "logs, by the run's page", href=opened))
    return element("small", join([whole[0], *(join([", ", each]) for each in whole[1:])]))
