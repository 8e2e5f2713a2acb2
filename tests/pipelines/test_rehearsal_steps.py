"""How far a training is, read below a folder in which others write and delete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contracts.events import EVENTS_NAME
from pipelines.rehearse import steps
from pipelines.rehearse.steps import StepWatch


def leave(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    event = {"event": "progress", "unit": "steps", "done": step, "total": 90}
    (folder / EVENTS_NAME).write_text(json.dumps(event) + "\n")


def test_the_newest_step_counts_of_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_WALK_S", 0.0)
    leave(tmp_path / "before", 70)
    watch = StepWatch(tmp_path)
    watch.read()
    assert (watch.step, watch.total) == (0, 0)
    leave(tmp_path / "a" / "b", 12)
    with (tmp_path / "a" / "b" / EVENTS_NAME).open("a") as stream:
        stream.write(json.dumps({"event": "spent", "step": 14}) + "\n")
    watch.read()
    assert (watch.step, watch.total) == (14, 90)


def test_a_folder_may_vanish_while_it_is_read(tmp_path: Path) -> None:
    watch = StepWatch(tmp_path)
    leave(tmp_path / "one", 5)
    watch.read()
    shutil.rmtree(tmp_path / "one")
    watch.read()
    assert watch.step == 5
