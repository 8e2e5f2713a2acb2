"""Pauses of a rank at named moments of a training, for tests; tests/support/hooks.py says where they are.

    start-up restore data forward backward optimizer staging writing before-manifest after-manifest retention
    evaluation epoch-boundary

SHARDLINE_PAUSE_AT is PHASE:N or PHASE:N:RANK, or several with commas. At the N-th arrival of a process at PHASE (of
that rank, else of every rank) it appends {"event": "paused", "at", "phase", "rank", "pid"} to SHARDLINE_PAUSE_FILE and
sleeps until it is killed. What stands in that file has happened: a process that is started again is not held again.
Of several, one is held once all before it have happened: where kills follow each other, each has a start of its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PAUSE_AT = "SHARDLINE_PAUSE_AT"
PAUSE_FILE = "SHARDLINE_PAUSE_FILE"
# A test that forgot its process must not hold it for good.
LONGEST_PAUSE_S = 600


@dataclass(frozen=True)
class _Pause:
    at: str
    arrival: int
    before: frozenset[str]
    """What must have happened."""


_lock = threading.Lock()
_arrivals: dict[str, int] = {}
# What the environment asks for, read at the first arrival; empty: nothing.
_wanted: dict[str, list[_Pause]] | None = None


def reached(phase: str) -> None:
    """Say that this process is at `phase`; costs a look at a variable."""
    if _wanted != {}:
        _arrive(phase)


def _arrive(phase: str) -> None:
    global _wanted
    rank = int(os.environ.get("RANK", "0"))
    with _lock:
        if _wanted is None:
            _wanted = _read(os.environ.get(PAUSE_AT, ""), rank)
        _arrivals[phase] = number = _arrivals.get(phase, 0) + 1
        asked = [pause for pause in _wanted.get(phase, []) if pause.arrival == number]
        path = Path(os.environ[PAUSE_FILE]) if asked else Path()
        held = [pause for pause in asked if _is_next(path, pause, rank)]
        for pause in held:
            record = {"event": "paused", "at": pause.at, "phase": phase, "rank": rank, "pid": os.getpid()}
            with path.open("ab", buffering=0) as stream:
                stream.write((json.dumps(record) + "\n").encode())
    if held:
        time.sleep(LONGEST_PAUSE_S)


def _read(text: str, rank: int) -> dict[str, list[_Pause]]:
    wanted: dict[str, list[_Pause]] = {}
    before: frozenset[str] = frozenset()
    for at in filter(None, text.split(",")):
        phase, nth, *ranks = at.split(":")
        if not ranks or int(ranks[0]) == rank:
            wanted.setdefault(phase, []).append(_Pause(at, int(nth), before))
        before |= {at}
    return wanted


def _is_next(path: Path, pause: _Pause, rank: int) -> bool:
    """Whether all before it have happened, on whatever rank, and it has not on this one."""
    records = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    happened = {(record["at"], record["rank"]) for record in records}
    return pause.before <= {at for at, _ in happened} and (pause.at, rank) not in happened
