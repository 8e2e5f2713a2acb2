"""List of the runs below a root: an ended run by its record, any other by its documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, get_args

import yaml
from pydantic import Field

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, RunRecord
from contracts.artifacts.document import Document
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.previous import RUN_NAME
from contracts.proof import VERIFIED_FOLDER, verdict
from contracts.yaml_text import Loader
from inspection.documents import READ_ERRORS, SMALL_BYTES, as_number, as_object, as_time, first_line
from inspection.find import THREADS, RunPlace, list_places
from inspection.headline import RunHeadline, headline, headline_of_record, make_headline
from inspection.money import find_money
from inspection.read import Reading, read_run, read_verification
from inspection.view import State

_TEXT_CHARACTERS, _MOST_METRICS = 300, 50
_OWN_KEYS = ("state", "name", "id")
_NO_KEY = object()


class RunRow(Document):
    """A run in a list."""

    id: str
    name: str
    """Of the line."""
    line: str
    folder: str
    state: State
    stage: str = ""
    """Current or failed stage; empty if it succeeded."""
    error: str = ""
    """First line."""
    started_at: float | None = None
    headline: RunHeadline
    metrics: dict[str, float] = Field(default={})
    """By name: test_accuracy."""
    problem: str = ""
    """Reason why the run could not be read; empty if it could."""


def list_runs(root: str, filters: Sequence[str] = ()) -> list[RunRow]:
    """Return a row for each run below a root, the newest first; rows of unreadable runs have the reason.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.
        filters: KEY=VALUE, all must match. KEY is state, name, id, or a key of the configuration.

    Raises:
        ConfigError: The root does not exist, or a filter is invalid.
    """
    conditions = [_parse_filter(text) for text in filters]
    # Threads do not speed up local files.
    with ThreadPoolExecutor(1 if storage.is_local(storage.normalise(root)) else THREADS) as pool:
        rows = [row for row, config in pool.map(_read, list_places(root)) if _matches(row, config, conditions)]
    return sorted(rows, key=lambda row: (row.started_at or 0.0, row.id), reverse=True)


def _parse_filter(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    section_key = ".".join(key.split(".")[:2])
    if not sign or (key not in _OWN_KEYS and _value_of(RunConfig().model_dump(mode="json"), section_key) is _NO_KEY):
        raise ConfigError(
            f"{text} is no filter of runs",
            allowed="state=VALUE, name=LINE, id=ID, or a key of the configuration: train.precision=bf16",
            todo="see docs/configuration.md for the keys",
        )
    if key == "state" and value not in get_args(State):
        raise ConfigError(f"{value} is no state of a run", allowed=", ".join(get_args(State)), todo="name one of these")
    return key, value


def _matches(row: RunRow, config: Mapping[str, Any], conditions: Iterable[tuple[str, str]]) -> bool:
    for key, value in conditions:
        actual = getattr(row, key) if key in _OWN_KEYS else _value_of(config, key)
        if actual is _NO_KEY or (value != str(actual) and _parse_value(value) != actual):
            return False
    return True


def _parse_value(text: str) -> Any:
    """Parse a value as in a configuration; text that is no YAML is returned unchanged."""
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError:
        return text


def _value_of(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; _NO_KEY if it is missing."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _NO_KEY
        value = value[part]
    return value


def _read(place: RunPlace) -> tuple[RunRow, dict[str, Any]]:
    """Return the row of a run and its configuration; errors in the run's documents become part of the row."""
    reading = Reading(place)
    try:
        try:
            record = reading.document(RunRecord, storage.join(place.folder, RUN_NAME), SMALL_BYTES)
        except FileNotFoundError:
            return _read_documents(place)
        return _row_of_record(reading, record), record.config
    except READ_ERRORS as error:
        problem, started_at = first_line(error)[:_TEXT_CHARACTERS], as_time(reading.start().get("started_at"))
        return _row(place, make_headline(state="unreadable"), problem=problem, started_at=started_at), {}


def _row_of_record(reading: Reading, record: RunRecord) -> RunRow:
    place, verified = reading.place, ""
    if export := _find_export(place, record):
        read = partial(reading.document, ExportManifest, storage.join(export, MANIFEST_NAME))
        if (document := reading.attempt("the export", read)) is not None:
            verified = verdict(document, read_verification(reading, export, document))
    figures = headline_of_record(record, money=find_money(record.config, record.goodput)[0], export_verdict=verified)
    at = next((stage.name for stage in record.stages if stage.state in ("failed", "interrupted")), "")
    return _row(
        place,
        figures,
        stage="" if record.state == "succeeded" else at,
        error=record.error,
        started_at=as_time(record.started_at),
        metrics=record.results.get("metrics"),
    )


def _find_export(place: RunPlace, record: RunRecord) -> str:
    """Return the folder of the run's export, in the line's current place, if it was verified later; else empty."""
    name = str(as_object(record.results.get("export")).get("uri", "")).rstrip("/").rpartition("/")[2]
    export = storage.join(place.line, "export", name)
    return export if name and storage.list_names(storage.join(export, VERIFIED_FOLDER)) else ""


def _read_documents(place: RunPlace) -> tuple[RunRow, dict[str, Any]]:
    """Return the row of a run without a record: in progress or killed."""
    view = read_run(place, headline_only=True)
    at = next((stage for stage in view.stages if stage.state in ("running", "failed", "interrupted", "stopped")), None)
    where = ""
    if at is not None:
        progress = at.progress
        share = f" {100 * progress.done / progress.total:.0f} %" if progress and progress.total > 0 else ""
        where = at.name + share
    row = _row(
        place,
        headline(view),
        stage=where,
        error=at.error if at else "",
        started_at=view.started_at,
        metrics=view.checkpoint.metrics if view.checkpoint is not None else None,
    )
    return row, view.config


def _row(
    place: RunPlace,
    figures: RunHeadline,
    *,
    stage: str = "",
    error: str = "",
    started_at: float | None = None,
    metrics: object = None,
    problem: str = "",
) -> RunRow:
    numbers = {str(name)[:_TEXT_CHARACTERS]: as_number(value) for name, value in as_object(metrics).items()}
    return RunRow(
        id=place.run_id,
        name=storage.display(place.line).rstrip("/").rpartition("/")[2],
        line=place.line,
        folder=place.folder,
        state=figures.state,
        stage=stage,
        error=(error.splitlines() or [""])[0][:_TEXT_CHARACTERS],
        started_at=started_at,
        headline=figures,
        metrics=dict([(name, value) for name, value in numbers.items() if value is not None][:_MOST_METRICS]),
        problem=problem,
    )
