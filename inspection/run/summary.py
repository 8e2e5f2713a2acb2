"""The runs below a root with their headlines: a run that has ended by its record alone, any other by its documents."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, RunRecord
from contracts.artifacts.document import Document
from contracts.config import RunConfig
from contracts.previous import RUN_NAME
from contracts.proof import VERIFIED_FOLDER
from inspection.run.door import HARM, SMALL_BYTES, Door, as_moment, as_object
from inspection.run.find import RunPlace, list_places
from inspection.run.headline import RunHeadline, find_verdict, headline, headline_of_record, make_headline
from inspection.run.money import find_money
from inspection.run.read import read_run, read_verifications
from inspection.run.reading import Reading, read_contract
from inspection.run.view import State

_THREADS = 16
# A run that was killed does not come back under its id.
_ENDED: tuple[State, ...] = ("succeeded", "failed", "interrupted", "stopped")
# In a bucket, an export that nothing has proven is asked for again after this: a listing costs money.
_VERIFIED_FRESH_S = 600.0


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
    problem: str = ""
    """Why the run could not be read; empty: it could."""


class RunLister:
    """The runs below a root; what has ended is read once, and again when its export was verified.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._ended: dict[RunPlace, _Read] = {}
        self._asked_at = 0.0
        self._lock = threading.Lock()

    def read(self) -> list[RunLine]:
        """Return a line for each run, the newest first; one that cannot be read says why.

        Raises:
            ConfigError: The root is not there.
        """
        with self._lock:
            known = dict(self._ended)
            is_due = time.monotonic() - self._asked_at >= _VERIFIED_FRESH_S
            if is_due:
                self._asked_at = time.monotonic()
        places = list_places(self.root, known)

        def read(place: RunPlace) -> _Read:
            before = known.get(place)
            return before if before is not None and before.stands(is_due=is_due) else _read_place(place)

        with ThreadPoolExecutor(_THREADS) as pool:
            found = dict(zip(places, pool.map(read, places), strict=True))
        with self._lock:
            self._ended.update(
                {p: one for p, one in found.items() if one.line.state in _ENDED and not one.line.problem}
            )
        lines = [one.line for one in found.values()]
        return sorted(lines, key=lambda line: (line.started_at or 0.0, line.id), reverse=True)


@dataclass(frozen=True)
class _Read:
    """The line of a run as it was read."""

    line: RunLine
    export: str = ""
    """Folder of its export; empty: it has none."""
    verified: tuple[str, ...] = ()
    """Verifications that were there."""

    def stands(self, *, is_due: bool) -> bool:
        """Whether it needs no second reading: an export can be verified after its run has ended.

        Args:
            is_due: Whether a bucket is asked, too.
        """
        if self.line.headline.verdict != "unproven" or not self.export:
            return True
        if not (is_due or storage.is_local(self.export)):
            return True
        return _list_verified(self.export) == self.verified


def read_line(place: RunPlace) -> RunLine:
    """Return the line of a run; it never raises for what the run holds."""
    return _read_place(place).line


def _read_place(place: RunPlace) -> _Read:
    try:
        return _read(place)
    except HARM as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _Read(_line(place, make_headline(state="silent"), problem=text[:300]))


def _read(place: RunPlace) -> _Read:
    door = Door(place.line)
    try:
        record = read_contract(door, RunRecord, storage.join(place.folder, RUN_NAME), SMALL_BYTES)
    except FileNotFoundError:
        return _Read(_of_documents(place))
    return _of_record(place, record, door)


def _of_record(place: RunPlace, record: RunRecord, door: Door) -> _Read:
    at = next((s.name for s in record.stages if s.state in ("failed", "interrupted", "not started")), "")
    export, verified, verdict = _find_export(place, record, door), tuple[str, ...](), ""
    if export and (verified := _list_verified(export)):
        document = read_contract(door, ExportManifest, storage.join(export, MANIFEST_NAME))
        verdict = find_verdict(document, read_verifications(Reading(place, door), export, document))
    line = _line(
        place,
        find_record_headline(record, verdict=verdict),
        stage="" if record.state == "succeeded" else at,
        error=record.error,
        started_at=as_moment(record.started_at),
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


def _of_documents(place: RunPlace) -> RunLine:
    """Return the line of a run that has left no record: it goes on, or has been killed."""
    view = read_run(place, headline_only=True)
    at = next((stage for stage in view.stages if stage.state in ("running", "failed", "interrupted", "stopped")), None)
    where = ""
    if at is not None:
        progress = at.progress
        share = f" {100 * progress.done / progress.total:.0f} %" if progress and progress.total > 0 else ""
        where = at.name + share
    return _line(place, headline(view), stage=where, error=at.error if at else "", started_at=view.started_at)


def _line(
    place: RunPlace,
    found: RunHeadline,
    *,
    stage: str = "",
    error: str = "",
    started_at: float | None = None,
    problem: str = "",
) -> RunLine:
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
        problem=problem,
    )
