"""The history of a line: its runs with their data, results and cost, and what was decided of them, the newest last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from contracts import storage
from contracts.artifacts.data_report import REPORT_NAME, DataReport, Verdict
from contracts.artifacts.document import Document
from contracts.artifacts.firing import FIRING_NAME, NOTHING, Firing
from contracts.artifacts.promotion import Decision
from contracts.config import SPLITS, RunConfig, RunSection
from contracts.errors import ConfigError
from contracts.result import RESULTS_FOLDER
from inspection.run.door import HARM, SMALL_BYTES, Door, as_moment, first_line, parse_json
from inspection.run.find import find_place, runs_of_line
from inspection.run.headline import metric_title
from inspection.run.production import read_line_decisions
from inspection.run.summary import RunLine, list_runs
from pages.quantities import exact_percent, instant

_THREADS = 16
_LENGTH, _MOST_SAID = 300, 20

ColumnName = Literal["when", "run", "state", "samples", "data", "result", "interval", "decision", "cost"]
COLUMNS: Mapping[ColumnName, str] = {
    "when": "when",
    "run": "run",
    "state": "state",
    "samples": "train / validation / test",
    "data": "data",
    "result": "test result",
    "interval": "95 % interval",
    "decision": "decision",
    "cost": "cost",
}
"""Titles, in the order in which they are shown."""


class HistoryRow(Document):
    """A run with what it decided, or a move by hand."""

    at: float | None
    """When the run started, or it was moved; seconds since the epoch."""
    run: str
    line: RunLine | None = None
    """The run in a list; None: moved by hand, or the run is gone."""
    samples: dict[str, int] = Field(default={})
    """By split; empty: the run left no data report."""
    data: Literal["", "cannot be read"] | Verdict = ""
    """Verdict of its data report; empty: it left none."""
    data_said: list[str] = Field(default=[])
    """Problems and warnings of the report."""
    decision: Decision | None = None

    def texts(self) -> dict[ColumnName, str]:
        """Return what each column shows; empty: nothing to show."""
        found = self.line.headline if self.line is not None else None
        result, interval = "", ""
        if found is not None:
            result = " ".join(filter(None, (found.text("metric"), found.text("metric") and metric_title(found.metric))))
            if found.metric_low is not None and found.metric_high is not None:
                interval = f"{exact_percent(found.metric_low)} to {exact_percent(found.metric_high)}"
        return {
            "when": instant(self.at) if self.at is not None else "",
            "run": self.run,
            "state": self.line.state if self.line is not None else "",
            "samples": " / ".join(f"{self.samples.get(split, 0):,}" for split in SPLITS) if self.samples else "",
            "data": ": ".join(filter(None, (self.data, *self.data_said[:1]))),
            "result": result,
            "interval": interval,
            "decision": _decided(self.decision) if self.decision is not None else "",
            "cost": found.text("cost") if found is not None else "",
        }


class History(Document):
    """All that happened to a line."""

    line: str
    production: str = ""
    """Run whose model is in production; empty: none is, or it is not known."""
    rows: list[HistoryRow]
    problem: str = ""
    """Why the decisions cannot be read; empty: they could."""

    def head(self) -> str:
        """Return what is in production, in words."""
        if self.problem:
            return f"what is in production is not known: {self.problem}"
        return f"in production: run {self.production}" if self.production else "no model is in production"


def find_line(text: str) -> str:
    """Return the URI of a line.

    Args:
        text: Its folder as a path or URI, its name below ./runs, or a run of it as `find_place` takes it.

    Raises:
        ConfigError: There is no such line with a run.
    """
    for uri in (storage.normalise(text), storage.join(storage.normalise(RunSection().root), text)):
        if runs_of_line(uri):
            return uri
    return find_place(text).line


def find_line_of(config: RunConfig) -> str:
    """Return the URI of a configuration's line, here or in a bucket.

    Raises:
        ConfigError: It has no run.
    """
    uri = storage.join(storage.normalise(config.run.root), config.run.name)
    if not runs_of_line(uri):
        raise ConfigError(
            f"run.name = {config.run.name!r} in run.root = {config.run.root!r}: the line has no run yet",
            allowed="the configuration of a line that has run",
            todo=f"run it first, or see what there is: shardline runs {config.run.root}",
        )
    return uri


def read_history(line: str) -> History:
    """Return the history of a line, by its URI; what cannot be read says why."""
    door, problem = Door(line), ""
    decisions: list[Decision] = []
    try:
        decisions = read_line_decisions(door)
    except HARM as error:
        problem = first_line(error)[:_LENGTH]
    own = {each.run: each for each in decisions if each.judgement is not None}
    with ThreadPoolExecutor(_THREADS) as pool:
        rows = list(pool.map(lambda run: _row(door, run, own.pop(run.id, None)), list_runs(line)))
    rows += [HistoryRow(at=as_moment(each.at), run=each.run, decision=each) for each in _others(decisions, own)]
    rows.sort(key=lambda row: (row.at or 0.0, row.decision.number if row.decision is not None else 0, row.run))
    return History(line=line, production=decisions[-1].production if decisions else "", rows=rows, problem=problem)


def _others(decisions: Sequence[Decision], of_gone: Mapping[str, Decision]) -> Iterator[Decision]:
    """Yield decisions that no listed run has made."""
    return (each for each in decisions if each.judgement is None or of_gone.get(each.run) == each)


def _row(door: Door, run: RunLine, decision: Decision | None) -> HistoryRow:
    row = HistoryRow(at=run.started_at, run=run.id, line=run, decision=decision)
    results = storage.join(run.folder, RESULTS_FOLDER)
    try:
        if run.state == NOTHING:
            firing = Firing.model_validate(parse_json(door.read(storage.join(results, FIRING_NAME), SMALL_BYTES)))
            return row.model_copy(update={"data_said": [firing.reason[:_LENGTH]]})
        report = DataReport.model_validate(parse_json(door.read(storage.join(results, REPORT_NAME), SMALL_BYTES)))
    except FileNotFoundError:
        return row
    except HARM as error:
        return row.model_copy(update={"data": "cannot be read", "data_said": [first_line(error)[:_LENGTH]]})
    said = [text[:_LENGTH] for text in (*report.problems, *report.warnings)[:_MOST_SAID]]
    return row.model_copy(update={"samples": report.samples, "data": report.verdict, "data_said": said})


def _decided(decision: Decision) -> str:
    who = f" by {decision.by}" if decision.judgement is None else ""
    return f"{decision.number}: {decision.action}{who}: {'; '.join(decision.reasons)[:_LENGTH]}"
