"""What differs from the run before in the line, on the run's first screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inspection.page import render_report
from inspection.run.before import find_before
from inspection.run.find import find_place
from inspection.run.read import read_run
from inspection.run.view import BeforeView
from tests.inspection.lines import Planted, plant

FIRST, SECOND, THIRD, FOURTH = (f"20261122-{hour:02}0000-0001" for hour in (7, 8, 9, 10))


def look(planted: Planted) -> tuple[BeforeView | None, str]:
    view = read_run(find_place(str(planted.folder)), pictures=False)
    return view.before, render_report(view).partition('<section id="overview"')[2].partition("</section>")[0]


def change(planted: Planted, name: str, edit: dict[str, Any]) -> None:
    path = planted.folder / name
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **edit}))


def test_a_run_names_what_it_has_other_than_the_one_before(tmp_path: Path, small_shards: str) -> None:
    first = plant(tmp_path / "roses", small_shards, run_id=FIRST)
    second = plant(tmp_path / "roses", small_shards, run_id=SECOND, sections={"train": {"epochs": 7}})
    third = plant(tmp_path / "roses", small_shards, run_id=THIRD, sections={"train": {"epochs": 7}})
    before, page = look(first)
    assert before is None and "differs from" not in page
    before, page = look(second)
    assert before is not None and before.id == FIRST and before.data_known
    (found,) = before.changes
    assert found.name == "train.epochs" and found.now == "7" != found.before
    assert f"Since run {FIRST}" in page and "<code>train.epochs</code>" in page
    assert f"Nothing: configuration and data are those of run {SECOND}." in look(third)[1]
    # Of a version that had neither section `inspect` nor most of `resources`.
    config = json.loads((third.folder / "run-start.json").read_bytes())["config"]
    older = {name: section for name, section in config.items() if name != "inspect"}
    change(third, "run-start.json", {"config": {**older, "resources": {"nodes": 2}}})
    fourth = plant(tmp_path / "roses", small_shards, run_id=FOURTH, sections={"inspect": {"samples": "hide"}})
    before, _ = look(fourth)
    assert before is not None
    assert {each.name for each in before.changes} >= {"inspect.samples", "resources.nodes"}
    assert "resources.strategy" not in {each.name for each in before.changes}


def test_other_data_and_a_run_before_that_cannot_be_read(tmp_path: Path, small_shards: str) -> None:
    first = plant(tmp_path / "roses", small_shards, run_id=FIRST)
    stages = json.loads((first.folder / "run.json").read_bytes())["stages"]
    other = [{**stage, "manifest_sha256": "ab" * 32, "made": "3 <samples>"} for stage in stages]
    change(first, "run.json", {"stages": other})
    damaged = plant(tmp_path / "roses", small_shards, run_id=SECOND)
    (damaged.folder / "run-start.json").write_text("{")
    before, page = look(plant(tmp_path / "roses", small_shards, run_id=THIRD))
    assert before is not None and before.id == FIRST
    first_change = before.changes[0]
    assert (first_change.name, first_change.before) == ("data", "3 <samples>")
    assert "3 &lt;samples&gt;" in page


def test_of_a_run_before_that_has_no_shards_only_the_configuration_is_compared(
    tmp_path: Path, small_shards: str
) -> None:
    plant(tmp_path / "roses", small_shards, run_id=FIRST, kind="killed")
    last = plant(tmp_path / "roses", small_shards, run_id=SECOND)
    before, page = look(last)
    assert before is not None and not before.data_known and before.changes == []
    assert "the configuration is that of run" in page and "whether the data is, is not known" in page
    assert find_before(find_place(str(last.folder)), {}, None) is None
