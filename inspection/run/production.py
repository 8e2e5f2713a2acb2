"""Whether the model of a run is in production, in words: the registry of its line (contracts/promotions.py)."""

from __future__ import annotations

import shlex

from contracts import storage
from contracts.artifacts.promotion import MODELS_FOLDER, PROMOTIONS_FOLDER, Decision
from contracts.promotions import find_model, read_decisions
from contracts.result import run_uri
from inspection.run.door import Door


def describe_production(door: Door, run_id: str) -> str:
    """Return the version of a run's model and what was decided of it; empty: the line has no registry.

    Raises:
        ValueError, ShardlineError, OSError: The registry cannot be read (door.HARM).
    """
    decisions = read_line_decisions(door)
    _require(door, MODELS_FOLDER)
    version = find_model(door.line, run_id)
    now = decisions[-1].production if decisions else ""
    if version is None and not now:
        return ""
    own = next((each for each in reversed(decisions) if each.run == run_id), None)
    words = [f"version {version.number} of the line" if version is not None else "no version of the line"]
    if own is not None:
        words.append(f"{own.action} by {own.by} at {own.at}")
    if now == run_id:
        words.append("in production")
    else:
        words.append(f"in production is run {now}" if now else "no model of the line is in production")
        if version is not None:
            unproven = "" if version.proven else " --allow-unproven"
            run = shlex.quote(storage.display(run_uri(door.line, run_id)))
            words.append(f"to put it there: shardline promote {run}{unproven}")
    return "; ".join(words)


def read_line_decisions(door: Door) -> list[Decision]:
    """Return the decisions of a line, the oldest first, none of them from outside of it; raises as above."""
    _require(door, PROMOTIONS_FOLDER)
    return read_decisions(door.line)


def _require(door: Door, name: str) -> None:
    folder = storage.join(door.line, name)
    for each in storage.list_names(folder):
        door.require(storage.join(folder, each))
