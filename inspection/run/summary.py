"""The runs below a root with their headlines: a run that has ended by its record alone, any other by its documents."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field, ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, RunRecord
from contracts.artifacts.document import Document
from contracts.config import RunConfig
from contracts.previous import RUN_NAME
from contracts.proof import VERIFIED_FOLDER, verdict
from inspection.run.columns import find_metrics, find_parameters
from inspection.run.door import HARM, SMALL_BYTES, Door, as_moment, as_object, first_line
from inspection.run.find import RunPlace, list_places
from inspection.run.headline import RunHeadline, headline, headline_of_record, make_headline
from inspection.run.money import find_money
from inspection.run.read import read_run, read_verification
from inspection.run.reading import Reading
from inspection.run.view import State

_THREADS = 16


class RunLine(Document):
    """A run in a list."""

    id: str
    name: str
    """Of the line."""
    line: str
    folder: str
    state: State
    stage: str
    """Where it is, or where it failed; empty: it succeeded."""
    error: str
    """First line."""
    started_at: float | None
    headline: RunHeadline
    parameters: dict[str, int | float | str] = Field(default={})
    """What was asked for, by the names of inspection/run/columns.py."""
    metrics: dict[str, float] = Field(default={})
    """What was measured, by name: test_accuracy."""
    problem: str = ""
    """Why the run could not be read; empty: it could."""


def list_runs(root: str) -> list[RunLine]:
    """Return a line for each run below a root, the newest first; one that cannot be read says why.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.

    Raises:
        ConfigError: The root is not there.
    """
    # Files of this machine wait for nobody: threads would only wait for each other.
    with ThreadPoolExecutor(1 if storage.is_local(storage.normalise(root)) else _THREADS) as pool:
        lines = list(pool.map(read_line, list_places(root)))
    return sorted(lines, key=lambda line: (line.started_at or 0.0, line.id), reverse=True)


def read_line(place: RunPlace) -> RunLine:
    """Return the line of a run; it never raises for what the run holds."""
    try:
        return _read(Reading(place, Door(place.line)))
    except HARM as error:
        return _line(place, make_headline(state="unreadable"), problem=first_line(error)[:300])


def _read(reading: Reading) -> RunLine:
    place = reading.place
    try:
        record = reading.contract(RunRecord, storage.join(place.folder, RUN_NAME), SMALL_BYTES)
    except FileNotFoundError:
        return _of_documents(place)
    at = next((s.name for s in record.stages if s.state in ("failed", "interrupted", "not started")), "")
    export, export_verdict = _find_export(place, record, reading.door), ""
    if export and storage.list_names(storage.join(export, VERIFIED_FOLDER)):
        document = reading.contract(ExportManifest, storage.join(export, MANIFEST_NAME))
        export_verdict = verdict(document, read_verification(reading, export, document))
    return _line(
        place,
        find_record_headline(record, export_verdict=export_verdict),
        stage="" if record.state == "succeeded" else at,
        error=record.error,
        started_at=as_moment(record.started_at),
        config=record.config,
        metrics=record.results.get("metrics"),
    )


def _find_export(place: RunPlace, record: RunRecord, door: Door) -> str:
    """Return the folder of the run's export in the line as it lies now; empty: there is none."""
    uri = as_object(record.results.get("export")).get("uri")
    if not isinstance(uri, str) or not (name := uri.rstrip("/").rpartition("/")[2]):
        return ""
    export = storage.join(place.line, "export", name)
    return export if door.inside(export) else ""


def find_record_headline(record: RunRecord, *, export_verdict: str = "") -> RunHeadline:
    """Return the headline of a run that has ended, by its record.

    Args:
        record: The run's.
        export_verdict: By its verification since; empty: that of the record.
    """
    try:
        money, _ = find_money(RunConfig.model_validate(record.config), record.goodput)
    except ValidationError:
        money = None
    return headline_of_record(record, money=money, export_verdict=export_verdict)


def _of_documents(place: RunPlace) -> RunLine:
    """Return the line of a run that has left no record: it goes on, or has been killed."""
    view = read_run(place, headline_only=True)
    at = next((stage for stage in view.stages if stage.state in ("running", "failed", "interrupted", "stopped")), None)
    where = ""
    if at is not None:
        progress = at.progress
        share = f" {100 * progress.done / progress.total:.0f} %" if progress and progress.total > 0 else ""
        where = at.name + share
    return _line(
        place,
        headline(view),
        stage=where,
        error=at.error if at else "",
        started_at=view.started_at,
        config=view.config,
        metrics=view.checkpoint.metrics if view.checkpoint is not None else None,
    )


def _line(
    place: RunPlace,
    found: RunHeadline,
    *,
    stage: str = "",
    error: str = "",
    started_at: float | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: object = None,
    problem: str = "",
) -> RunLine:
    config = config if config is not None else {}
    return RunLine(
        id=place.run_id,
        name=storage.display(place.line).rstrip("/").rpartition("/")[2],
        line=place.line,
        folder=place.folder,
        state=found.state,
        stage=stage,
        error=(error.splitlines() or [""])[0][:300],
        started_at=started_at,
        headline=found,
        parameters=find_parameters(config),
        metrics=find_metrics(metrics),
        problem=problem,
    )
