"""The line of a run in a list: read from its record alone, from its events only while it has none."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import GoodputRecord, RunRecord
from contracts.config import STAGES, RunConfig
from contracts.previous import RUN_NAME
from inspection.run.door import HARM, SMALL_BYTES, Door, as_moment, as_number, as_object, parse_json
from inspection.run.events import list_attempts, of_run, read_events_of
from inspection.run.find import RunPlace, list_places
from inspection.run.money import find_money
from inspection.run.reading import read_contract
from inspection.run.stages import read_stage
from inspection.run.state import find_state
from inspection.run.view import Missing, RunLine, State

_THREADS = 16
_NAME = 200
# A run that was killed does not come back under its id.
_ENDED = ("succeeded", "failed", "interrupted", "stopped")


class RunLister:
    """The runs below a root; what has ended is read once.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._ended: dict[RunPlace, RunLine] = {}
        self._lock = threading.Lock()

    def read(self) -> list[RunLine]:
        """Return a line for each run, the newest first; one that cannot be read says why.

        Raises:
            ConfigError: The root is not there.
        """
        with self._lock:
            known = dict(self._ended)
        places = list_places(self.root, known)
        unread = [place for place in places if place not in known]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = dict(zip(unread, pool.map(read_line, unread), strict=True))
        with self._lock:
            self._ended.update({p: line for p, line in found.items() if line.state in _ENDED and not line.problem})
        lines = [known.get(place) or found[place] for place in places]
        return sorted(lines, key=lambda line: (line.started_at or 0.0, line.id), reverse=True)


def read_line(place: RunPlace) -> RunLine:
    """Return the line of a run; it never raises for what the run holds."""
    try:
        return _read(place)
    except HARM as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _line(place, state="silent", problem=text[:300])


def _read(place: RunPlace) -> RunLine:
    uri = storage.join(place.folder, RUN_NAME)
    door = Door(place.line)
    try:
        return _of_record(place, read_contract(door, RunRecord, uri, SMALL_BYTES))
    except FileNotFoundError:
        return _of_events(door, place)


def _of_record(place: RunPlace, record: RunRecord) -> RunLine:
    results = record.results
    at = next((s.name for s in record.stages if s.state in ("failed", "interrupted", "not started")), "")
    exported = as_object(results.get("export"))
    found = record.find_headline()
    return _line(
        place,
        state=record.state,
        stage="" if record.state == "succeeded" else at,
        error=(record.error.splitlines() or [""])[0][:300],
        started_at=as_moment(record.started_at),
        wall_s=record.wall_s,
        headline=found[0].metric[:_NAME] if found else "",
        test_value=as_number(found[1]) if found else None,
        precision=str(exported.get("precision", ""))[:20],
        verdict=str(exported.get("verdict", ""))[:20],
        config=record.config,
        goodput=record.goodput,
    )


def _of_events(door: Door, place: RunPlace) -> RunLine:
    start = parse_json(door.read(place.start_uri, SMALL_BYTES))
    started_at = as_moment(as_object(start).get("started_at"))
    now, missing = time.time(), list[Missing]()
    told = {
        stage: read_events_of(place.line, stage, of_run(list_attempts(place.line, stage), place.run_id))[0]
        for stage in STAGES
    }
    times = [float(event["time"]) for attempts in told.values() for events in attempts.values() for event in events]
    last = max(times, default=started_at or 0.0)
    state = find_state(place, None, last_word_at=last, now=now)
    stages = [
        read_stage(
            place,
            name,
            told[name],
            record=None,
            over=state == "stopped",
            located=lambda uri: uri,
            door=door,
            missing=missing,
        )
        for name in STAGES
    ]
    at = next((stage for stage in stages if stage.state in ("running", "failed", "interrupted", "stopped")), None)
    where = ""
    if at is not None:
        progress = at.progress
        share = f" {100 * progress.done / progress.total:.0f} %" if progress and progress.total > 0 else ""
        where = at.name + share
    return _line(
        place,
        state=state,
        stage=where,
        error=(at.error.splitlines() or [""])[0][:300] if at else "",
        started_at=started_at,
        wall_s=max(0.0, (now if state == "running" else last) - started_at) if started_at else None,
        config=as_object(as_object(start).get("config")),
    )


def _line(
    place: RunPlace,
    *,
    state: State,
    stage: str = "",
    error: str = "",
    started_at: float | None = None,
    wall_s: float | None = None,
    headline: str = "",
    test_value: float | None = None,
    precision: str = "",
    verdict: str = "",
    config: Mapping[str, Any] | None = None,
    goodput: GoodputRecord | None = None,
    problem: str = "",
) -> RunLine:
    return RunLine(
        id=place.run_id,
        name=storage.display(place.line).rstrip("/").rpartition("/")[2],
        line=place.line,
        folder=place.folder,
        state=state,
        stage=stage,
        error=error,
        started_at=started_at,
        wall_s=wall_s,
        headline=headline,
        test_value=test_value,
        precision=precision,
        verdict=verdict,
        goodput_percent=goodput.goodput_percent if goodput else None,
        preemptions=goodput.preemptions if goodput else None,
        cost_usd=_cost_usd(config, goodput),
        problem=problem,
    )


def _cost_usd(config: Mapping[str, Any] | None, goodput: GoodputRecord | None) -> float | None:
    if not config or goodput is None:
        return None
    try:
        money, _ = find_money(RunConfig.model_validate(config), goodput)
    except ValidationError:
        return None
    return money.cost_high_usd if money else None
