"""Runs of every kind, read into views: what the pages and the terminal show."""

from __future__ import annotations

import pytest

from contracts.config import STAGES
from inspection.find import find_place
from inspection.read import read_run
from inspection.view import RunView
from tests.inspection.lines import START, Kind, leave_lock, plant

_KINDS: tuple[Kind, ...] = ("fresh", "resumed", "cached", "int8 refused", "running", "killed", "interrupted")
_PRICED = {"resources": {"machine": {"type": "n1-standard-4"}, "strategy": "SPOT"}, "cloud": {"region": "us-central1"}}


@pytest.fixture(scope="session")
def views(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunView]:
    """A view of each kind of planted run, by its kind; `failed in STAGE` for each stage."""
    folder = tmp_path_factory.mktemp("kinds")
    views = {}
    for kind in _KINDS:
        # Cached: in the line of the run that made everything.
        line, run_id = ("fresh", "20261122-090000-0001") if kind == "cached" else (kind, "20261122-070000-0001")
        run = plant(folder / line.replace(" ", "-"), small_shards, kind=kind, run_id=run_id, sections=_PRICED)
        if kind == "killed":
            leave_lock(run)
        views[kind] = read_run(find_place(str(run.folder)), now=START + 60)
    for stage in STAGES:
        run = plant(folder / f"failed-{stage}", small_shards, kind="failed", failed=stage, sections=_PRICED)
        views[f"failed in {stage}"] = read_run(find_place(str(run.folder)), now=START + 60)
    return views
