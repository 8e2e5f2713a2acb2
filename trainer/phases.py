"""Named moments of a training at which a rank can be held for a test: `reached("forward")` does nothing unless asked.

    start-up restore data forward backward optimizer staging writing before-manifest after-manifest retention
    evaluation epoch-boundary

SHARDLINE_PAUSE_AT is PHASE:N or PHASE:N:RANK, or several with commas. At the N-th arrival of a process at PHASE (of
that rank, else of every rank) it appends {"event": "paused", "at", "phase", "rank", "pid"} to SHARDLINE_PAUSE_FILE and
sleeps until it is killed. What stands in that file has happened: a process that is started again is not held again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

PAUSE_AT = "SHARDLINE_PAUSE_AT"
PAUSE_FILE = "SHARDLINE_PAUSE_FILE"
# A test that forgot its process must not hold it for good.
LONGEST_PAUSE_S = 600

_lock = threading.Lock()
_arrivals: dict[str, int] = {}
# What the environment asks for, read at the first arrival; empty: nothing.
_wanted: dict[str, list[tuple[int, str]]] | None = None


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
        asked = [at for nth, at in _wanted.get(phase, []) if nth == number]
        path = Path(os.environ[PAUSE_FILE]) if asked else Path()
        held = [at for at in asked if not _has_happened(path, at, rank)]
        for at in held:
            record = {"event": "paused", "at": at, "phase": phase, "rank": rank, "pid": os.getpid()}
            with path.open("ab", buffering=0) as stream:
                stream.write((json.dumps(record) + "\n").encode())
    if held:
        time.sleep(LONGEST_PAUSE_S)


def _read(text: str, rank: int) -> dict[str, list[tuple[int, str]]]:
    wanted: dict[str, list[tuple[int, str]]] = {}
    for at in filter(None, text.split(",")):
        phase, nth, *ranks = at.split(":")
        if not ranks or int(ranks[0]) == rank:
            wanted.setdefault(phase, []).append((int(nth), at))
    return wanted


def _has_happened(path: Path, at: str, rank: int) -> bool:
    if not path.exists():
        return False
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    return any((record["at"], record["rank"]) == (at, rank) for record in records)
