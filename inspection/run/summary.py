"""The runs below a root with their headlines: a run that has ended by its record alone, any other by its documents."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, RunRecord
from contracts.artifacts.document import Document
from contracts.artifacts.firing import NOTHING
from contracts.config import RunConfig
from contracts.previous import RUN_NAME
from contracts.proof import VERIFIED_FOLDER
from inspection.run.columns import find_metrics, find_parameters, find_tags, todays
from inspection.run.documents import Documents
from inspection.run.door import HARM, SMALL_BYTES, Door, as_moment, as_object, first_line
from inspection.run.find import RunPlace, list_lines, runs_of_line
from inspection.run.headline import RunHeadline, find_verdict, headline, headline_of_record, make_headline
from inspection.run.money import find_money
from inspection.run.read import read_run, read_verifications
from inspection.run.reading import Reading
from inspection.run.short_curve import ShortCurve, find_curve
from inspection.run.view import State

_THREADS = 16
# A run that was killed does not come back under its id.
_ENDED: tuple[State, ...] = ("succeeded", "failed", "interrupted", "stopped", "nothing to do")
# A run of which nothing is known for a day: somebody may write its record yet.
_UNKNOWN_FRESH_S = 600.0
# In a bucket each listing costs money (docs/inspect.md has the sum). Runs copy their events there every 30 s, silent
# ones wait for machines, and an export that nothing has proven may be verified any time.
_BUCKET_FRESH_S = {"running": 30.0, "silent": 60.0, "unproven": 3600.0}
# A line is looked into for new runs after this, and after twice as long each time when there were none.
_LINE_FRESH_S, _LINE_MOST_S = 10.0, 240.0


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
    tags: list[str] = Field(default=[])
    """Labels, as KEY=VALUE."""
    curve: ShortCurve | None = None
    """Out of the record; None: the run has none yet, or its training left no scalars."""
    problem: str = ""
    """Why the run could not be read; empty: it could."""


class RunLister:
    """The runs below a root; what has ended is read once, and again when its export was verified.

    On this machine every reading looks at everything else. In a bucket it lists the root, the lines in which something
    was new lately, and the others every few minutes; it reads runs again when there may be news of them.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.
        clock: Seconds from any moment on.
        documents: What other readings of this process have parsed; None: nothing.
    """

    def __init__(
        self, root: str, *, clock: Callable[[], float] = time.monotonic, documents: Documents | None = None
    ) -> None:
        self.root = root
        self._documents = documents if documents is not None else Documents()
        self._clock = clock
        self._is_local = storage.is_local(storage.normalise(root))
        self._lines: dict[str, _Line] = {}
        self._known: dict[RunPlace, _Read] = {}
        self._lock = threading.Lock()

    def read(self) -> list[RunLine]:
        """Return a line for each run, the newest first; one that cannot be read says why.

        Raises:
            ConfigError: The root is not there.
        """
        with self._lock:
            lines, known, now = self._lines, self._known, self._clock()
        uris = list_lines(self.root)
        # Files of this machine wait for nobody: threads would only wait for each other.
        with ThreadPoolExecutor(1 if self._is_local else _THREADS) as pool:
            looked = pool.map(lambda uri: self._look(uri, lines.get(uri), known, now), uris)
            lines = dict(zip(uris, looked, strict=True))
            places = [place for line in lines.values() for place in line.places]
            read = pool.map(lambda place: self._read(place, known.get(place), now), places)
            known = dict(zip(places, read, strict=True))
        with self._lock:
            self._lines, self._known = lines, known
        found = [one.line for one in known.values()]
        return sorted(found, key=lambda line: (line.started_at or 0.0, line.id), reverse=True)

    def _look(self, uri: str, before: _Line | None, known: dict[RunPlace, _Read], now: float) -> _Line:
        """Return the runs of a line."""
        if before is not None and now < before.due_at:
            return before
        places = runs_of_line(uri, known)
        if self._is_local:
            return _Line(places, 0.0, now)
        is_same = before is not None and places == before.places
        pause_s = min(2 * before.pause_s, _LINE_MOST_S) if before is not None and is_same else _LINE_FRESH_S
        return _Line(places, pause_s, now + pause_s)

    def _read(self, place: RunPlace, before: _Read | None, now: float) -> _Read:
        stands = before is not None and (now < before.due_at or before.stands())
        read = before if before is not None and stands else _read_place(place, self._documents)
        return read if now < read.due_at else replace(read, due_at=now + self._rest_s(read))

    def _rest_s(self, read: _Read) -> float:
        """Return for how long a reading stands."""
        line = read.line
        if line.problem:
            return 0.0 if self._is_local else _BUCKET_FRESH_S["silent"]
        if line.state in _ENDED:
            wants_proof = line.headline.verdict == "unproven" and read.export
            return 0.0 if wants_proof and self._is_local else _BUCKET_FRESH_S["unproven"] if wants_proof else math.inf
        if line.state == "unknown":
            return _UNKNOWN_FRESH_S
        return 0.0 if self._is_local else _BUCKET_FRESH_S[line.state]


@dataclass(frozen=True)
class _Line:
    """The runs of a line as it was looked into."""

    places: list[RunPlace]
    pause_s: float
    due_at: float
    """When it is looked into again, by the lister's clock."""


@dataclass(frozen=True)
class _Read:
    """The line of a run as it was read."""

    line: RunLine
    export: str = ""
    """Folder of its export; empty: it has none."""
    verified: tuple[str, ...] = ()
    """Verifications that were there."""
    due_at: float = 0.0
    """When it is looked at again, by the lister's clock."""

    def stands(self) -> bool:
        """Whether it needs no second reading: an export can be verified after its run has ended."""
        if self.line.state not in _ENDED or self.line.problem:
            return False
        return _list_verified(self.export) == self.verified


def read_line(place: RunPlace, documents: Documents) -> RunLine:
    """Return the line of a run; it never raises for what the run holds."""
    return _read_place(place, documents).line


def _read_place(place: RunPlace, documents: Documents) -> _Read:
    try:
        return _read(Reading(place, Door(place.line), documents))
    except HARM as error:
        return _Read(_line(place, make_headline(state="silent"), problem=first_line(error)[:300]))


def _read(reading: Reading) -> _Read:
    place = reading.place
    try:
        record = reading.contract(RunRecord, storage.join(place.folder, RUN_NAME), SMALL_BYTES)
    except FileNotFoundError:
        return _Read(_of_documents(place, reading.documents))
    at = next((s.name for s in record.stages if s.state in ("failed", "interrupted", "not started")), "")
    export, verified, verdict = _find_export(place, record, reading.door), tuple[str, ...](), ""
    if export and (verified := _list_verified(export)):
        document = reading.contract(ExportManifest, storage.join(export, MANIFEST_NAME))
        verdict = find_verdict(document, read_verifications(reading, export, document))
    line = _line(
        place,
        find_record_headline(record, verdict=verdict),
        stage="" if record.state in ("succeeded", NOTHING) else at,
        error=record.error,
        started_at=as_moment(record.started_at),
        config=todays(record.config),
        metrics=record.results.get("metrics"),
        curve=find_curve(record.results.get("curve")),
    )
    return _Read(line, export, verified)


def _find_export(place: RunPlace, record: RunRecord, door: Door) -> str:
    """Return the folder of the run's export in the line as it lies now; empty: there is none."""
    uri = as_object(record.results.get("export")).get("uri")
    if not isinstance(uri, str) or not (name := uri.rstrip("/").rpartition("/")[2]):
        return ""
    export = storage.join(place.line, "export", name)
    return export if door.inside(export) else ""


def _list_verified(export: str) -> tuple[str, ...]:
    return tuple(storage.list_names(storage.join(export, VERIFIED_FOLDER)))


def find_record_headline(record: RunRecord, *, verdict: str = "") -> RunHeadline:
    """Return the headline of a run that has ended, by its record.

    Args:
        record: The run's.
        verdict: By what was verified since; empty: the export's own.
    """
    try:
        money, _ = find_money(RunConfig.model_validate(record.config), record.goodput)
    except ValidationError:
        money = None
    return headline_of_record(record, money=money, verdict=verdict)


def _of_documents(place: RunPlace, documents: Documents) -> RunLine:
    """Return the line of a run that has left no record: it goes on, or has been killed."""
    view = read_run(place, headline_only=True, cache=documents)
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
    curve: ShortCurve | None = None,
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
        tags=find_tags(config),
        curve=curve,
        problem=problem,
    )
