"""Report of a run (report.html) and page of each stage: one HTML file of limited size, without a script.

`shardline report RUN` writes the report; the page of a stage is the HTML artifact of its pipeline task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contracts import storage
from contracts.errors import ConfigError, ShardlineError, StorageError
from inspection.find import find_place
from inspection.headline import headline
from inspection.pages.parts import Cell, Link, absent, section
from inspection.pages.quantities import instant, shorten
from inspection.pages.rendering import Html, document
from inspection.read import read_run
from inspection.report.context import CONSOLE, Context, Href, Limits, beside, console, elsewhere, shown_uri
from inspection.report.data import data
from inspection.report.export import export
from inspection.report.overview import overview
from inspection.report.profile import profile
from inspection.report.results import results
from inspection.report.training import training
from inspection.view import RunView

PAGE_NAME = "report.html"
MOST_BYTES = 500_000
"""Of a page, in UTF-8."""
_SECTIONS: dict[str, tuple[str, Callable[[Context], Html]]] = {
    "overview": ("Overview", overview),
    "data": ("Data", data),
    "profile": ("Profile", profile),
    "training": ("Training", training),
    "results": ("Results", results),
    "export": ("Export", export),
}
SECTIONS = tuple((name, title) for name, (title, _) in _SECTIONS.items())
"""Ids and titles, in their order."""
_OF_STAGES = {"shard": ("data",), "profile": ("profile",), "train": ("results", "training"), "export": ("export",)}
# First bytes of every page.
_HEAD = b'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'


def write_report(run: str, output: str | None) -> str:
    """Write the report of a run and return its path or URI, as a user types it.

    Args:
        run: Folder of a run or of a line, or the id of a run below ./runs.
        output: File to write; None: report.html in the run's folder. Only an earlier report is replaced.

    Raises:
        ConfigError: There is no such run, or the file cannot be written.
    """
    place = find_place(run)
    target = storage.normalise(output) if output else storage.join(place.folder, PAGE_NAME)
    if storage.is_local(target) and storage.local_path(target).is_dir():
        target = storage.join(target, PAGE_NAME)
    _require_replaceable(target)
    # In the run's folder, relative links stay valid when the line is moved or copied.
    is_beside = target.rpartition("/")[0] == place.folder
    page = render_report(read_run(place), href=None if is_beside else elsewhere)
    try:
        storage.replace(target, page.encode())
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.given
        raise ConfigError(
            f"{storage.display(target)} cannot be written ({reason})",
            allowed="a file in a folder that you may write",
            todo="pass --to FILE",
        ) from None
    return storage.display(target)


def _require_replaceable(target: str) -> None:
    try:
        head = storage.read_range(target, 0, len(_HEAD))
    except (OSError, StorageError):
        # Missing or unreadable; writing reports errors.
        return
    if head != _HEAD:
        raise ConfigError(
            f"{storage.display(target)} exists, and is not a report of a run",
            allowed="a new file, or an earlier report, which is replaced",
            todo="choose another --to, or delete the file yourself",
        )


def render_report(view: RunView, *, href: Href | None = None) -> str:
    """Return the report of a run as HTML of less than MOST_BYTES; large runs are shown in part.

    Args:
        view: The run.
        href: Addresses of links; None: relative links for a page in LINE/runs/ID/.
    """
    state_note = headline(view).figure("state").note
    facts: list[Cell] = [f"Run {shorten(view.id, 120)}", *([state_note] if view.state != "interrupted" else [])]
    facts.append("run on Vertex AI Pipelines" if view.place == "vertex" else "local run")
    if view.started_at is not None:
        facts.append(f"started {instant(view.started_at)}")
    if view.last_event_at is not None and view.state in ("running", "silent"):
        facts.append(f"last event {instant(view.last_event_at)}")
    if view.console is not None and view.console.startswith(CONSOLE):
        facts.append(Link("Vertex AI console", view.console))
    facts.append(shown_uri(shorten(view.line, 300)))
    heading, state = shorten(view.name, 80), view.state
    return _fit(view, href or beside(view.line), heading, state, facts, list(_SECTIONS), SECTIONS)


def render_stage(view: RunView, stage: str) -> str:
    """Return the page of a stage as HTML of less than MOST_BYTES, for services that show it beside the stage.

    Args:
        view: The run.
        stage: shard, profile, train or export.
    """
    stage_view = view.stage(stage)
    state = stage_view.state if stage_view is not None else "not started"
    heading = f"Stage {stage} of {shorten(view.name, 80)}"
    return _fit(view, console, heading, state, [f"Run {shorten(view.id, 120)}"], _OF_STAGES[stage])


def _fit(
    view: RunView,
    href: Href,
    heading: str,
    state: str,
    facts: Sequence[Cell],
    names: Sequence[str],
    navigation: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page, with limits halved until it is small enough."""
    limits = Limits()
    footer = f"Read {instant(view.seen_at)}. Values that were not measured are never shown as 0. Costs are estimates."
    while True:
        context = Context(view, limits, href)
        page = document(
            f"{heading} {view.id}",
            heading=heading,
            state=state,
            facts=facts,
            navigation=navigation,
            sections=[_section(context, name) for name in names],
            footer=footer,
        )
        if len(page.encode()) < MOST_BYTES or limits == limits.halved():
            return page
        limits = limits.halved()


def _section(context: Context, name: str) -> Html:
    """Return a section, or the reason why it cannot be drawn, for example a count of 400 digits."""
    title, draw = _SECTIONS[name]
    try:
        return draw(context)
    except (ValueError, ArithmeticError, LookupError, ShardlineError) as error:
        reason = shorten(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        return section(name, title, absent(name, f"This section cannot be shown: {reason}"))
