"""Executors of custom jobs that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.rehearse import steps
from rehearsal.jobs import custom_jobs
from rehearsal.machines.machine import Scale
from tests.rehearsal.jobs.jobs import Jobs


@pytest.fixture(autouse=True)
def errors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a failed job's error as soon as it has failed, but where a test is about that; read new steps at once."""
    monkeypatch.setattr(custom_jobs, "ERROR_DELAY_S", 0.0)
    monkeypatch.setattr(steps, "_WALK_S", 0.0)


@pytest.fixture
def make_jobs(tmp_path: Path) -> Iterator[Callable[..., Jobs]]:
    """Make executors of custom jobs; they end with the test."""
    made: list[Jobs] = []

    def make(folder: str = "jobs", **options: Any) -> Jobs:
        options.setdefault("scale", Scale(time_scale=0.02))
        made.append(Jobs(tmp_path / folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.runs.close()


@pytest.fixture
def jobs(make_jobs: Callable[..., Jobs]) -> Jobs:
    return make_jobs(scale=Scale(processes_per_node=2, time_scale=0.02))
