"""How a run stands: its headline figures, the graph of its stages, what failed and what to do, and every attempt."""

from __future__ import annotations

from contracts.endings import ASKS_AGAIN
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR
from contracts.proof import find_unproven_targets
from inspection.page.account import usd_range
from inspection.page.dag import dag
from inspection.page.links import console, console_page, folder_link, link
from inspection.page.results import show_metric
from inspection.page.state import chip
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.view import AttemptView, StageView
from pages.markup import Html, bar, element, figure, join, section, shorten, table
from pages.quantities import count, instant, percent, seconds

_EXITS = {
    EXIT_OK: "finished",
    EXIT_CHECK_FAILED: "said no",
    EXIT_USER_ERROR: "user error: not tried again",
    EXIT_FAULT: "a fault",
    **dict.fromkeys(ASKS_AGAIN, "asked for another attempt"),
}
STATES = {
    "running": "it runs",
    "silent": "no record, and no word for a while",
    "stopped": "its process is gone and left no record",
    "interrupted": "the same command continues",
    "failed": "it failed",
    "succeeded": "all stages are done",
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
    view = subject.view
    name, result = headline(subject)
    pending = _pending(subject)
    tiles = [
        tile("State", chip(view.state), STATES[view.state]),
        tile(
            f"Test {shorten(name.replace('_', ' '), 40) or 'result'}",
            figure("overview.headline", result, show_metric(subject.view.task, name), pending),
            _samples(subject),
        ),
        _precision(subject),
        tile(
            "Wall time",
            figure("overview.wall_s", view.wall_s, seconds, "not known"),
            "so far" if view.state in ("running", "silent") else "the whole run",
        ),
        tile(
            "Goodput",
            figure(
                "overview.goodput_percent",
                view.goodput.goodput_percent if view.goodput is not None else None,
                lambda value: percent(value / 100),
                pending,
            ),
            "of the training's time in steps that count",
        ),
        _cost(subject),
    ]
    return element("div", *tiles, class_="tiles head")


def _pending(subject: Subject) -> str:
    """Return what a figure reads that is not there: a run that goes on may bring it."""
    return "not yet" if subject.view.state in ("running", "silent") else "none"


def headline(subject: Subject) -> tuple[str, float | None]:
    """Return the name of the task's headline metric, and its value on the test split.

    They are those of the evaluation, or else of the checkpoint; empty, and None: not known.
    """
    if (found := subject.view.evaluation) is not None:
        return found.headline.metric, found.value(found.headline.metric)
    trained = subject.view.checkpoint
    if trained is None or trained.headline is None:
        return "", None
    return trained.headline.metric, trained.headline.value(trained.metrics, "test")


def _samples(subject: Subject) -> str:
    found = subject.view.evaluation
    if found is None:
        return ""
    better = "higher" if found.headline.direction == "max" else "lower"
    return f"{found.samples:,} samples; {better} is better"


def verdict(subject: Subject) -> str:
    """Return proven or unproven, by the export and what was verified since; empty: nothing was exported."""
    found = subject.view.export
    if found is None:
        return ""
    return "unproven" if find_unproven_targets(found, subject.view.verifications) else "proven"


def _precision(subject: Subject) -> Html:
    found = subject.view.export
    if found is None:
        return tile(
            "Ships",
            element("span", _pending(subject), class_="missing", data_figure="overview.precision", data_missing=True),
        )
    words = [element("span", found.precision, data_text="overview.precision"), " ", chip(verdict(subject))]
    if found.precision != found.asked_precision:
        note = f"{found.asked_precision} was asked for, and refused by its gates"
    else:
        note = "as asked for"
    return tile("Ships", join(words), note)


def _cost(subject: Subject) -> Html:
    money = subject.view.money
    if money is None:
        shown = element("span", "not known", class_="missing", data_figure="overview.cost", data_missing=True)
        return tile("Cost", shown, "see “Time and money”")
    words = usd_range("overview.cost", money.cost_low_usd, money.cost_high_usd)
    return tile("Cost", words, f"of the training's machines, {money.strategy.lower()}; an estimate")


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
