"""Differences of a run from the one before in its line, and of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inspection.differences import compare_runs
from inspection.find import find_place
from inspection.read import read_run
from inspection.view import Change, PreviousRun, RunView
from tests.inspection.lines import Planted, plant

FIRST, SECOND, THIRD = (f"20261122-{hour:02}0000-0001" for hour in (7, 8, 9))


def read(planted: Planted) -> RunView:
    return read_run(find_place(str(planted.folder)), pictures=False)


def previous(planted: Planted) -> PreviousRun:
    run = read(planted).previous
    assert run is not None
    return run


def change(planted: Planted, name: str, edit: dict[str, Any]) -> None:
    path = planted.folder / name
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **edit}))


def test_a_run_is_compared_with_the_one_before(tmp_path: Path, small_shards: str) -> None:
    line = tmp_path / "roses"
    first = plant(line, small_shards, run_id=FIRST)
    second = plant(line, small_shards, run_id=SECOND, sections={"train": {"epochs": 7}})
    third = plant(line, small_shards, run_id=THIRD, sections={"train": {"epochs": 7}})
    assert read(first).previous is None
    before = previous(second)
    assert before.id == FIRST and before.data_known
    (epochs,) = before.changes
    assert epochs.name == "train.epochs" and epochs.now == "7" != epochs.before
    assert previous(third) == PreviousRun(id=SECOND, changes=[], data_known=True)


def test_other_data_and_a_run_before_that_cannot_be_read(tmp_path: Path, small_shards: str) -> None:
    first = plant(tmp_path / "roses", small_shards, run_id=FIRST)
    stages = json.loads((first.folder / "run.json").read_bytes())["stages"]
    other = [{**stage, "manifest_sha256": "ab" * 32, "made": "3 <samples>"} for stage in stages]
    change(first, "run.json", {"stages": other})
    damaged = plant(tmp_path / "roses", small_shards, run_id=SECOND)
    (damaged.folder / "run-start.json").write_text("{")
    before = previous(plant(tmp_path / "roses", small_shards, run_id=THIRD))
    assert before.id == FIRST
    assert before.changes[0] == Change(name="data", before="3 <samples>", now="what shard makes")


def test_two_runs_differ_in_configuration_data_and_figures(views: dict[str, RunView]) -> None:
    changes = {each.name: (each.before, each.now) for each in compare_runs(views["fresh"], views["failed in profile"])}
    assert changes["state"] == ("succeeded", "failed") and changes["test accuracy"] == ("93.75 %", "")
    assert changes["run.name"] == ('"fresh"', '"failed-profile"')
    assert "data" not in changes
    changed = views["fresh"].model_copy(update={"manifest_sha256": {"shard": "ab" * 32}})
    assert compare_runs(views["fresh"], changed)[0].name == "data"
