"""What is not known is said, and is never shown as well or as nothing: gaps in data, curves, states and records."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import RunRecord, ShardManifest
from contracts.config.load import parse_config
from contracts.scalars import part_name, scalars_line
from inspection.page import render_report
from inspection.run.curves import read_curves
from inspection.run.data import describe_data
from inspection.run.door import Door
from inspection.run.find import find_place
from inspection.run.read import read_run
from inspection.run.reading import Reading
from inspection.run.summary import list_runs
from inspection.run.training import cut_curves
from inspection.run.view import Curve, Curves
from inspection.summary import collect_results
from tests.inspection import planted as views
from tests.inspection.lines import START, leave_lock, plant

DAY_S = 86_400.0


@pytest.fixture
def line(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "photos"


def test_copies_that_nobody_looked_for_are_not_none_found(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    for found, words in ((manifest.duplicates, "none found"), (None, "not searched")):
        data = describe_data(small_shards, manifest.model_copy(update={"duplicates": found}))
        page = render_report(views.fresh(data=data))
        assert page.count(f">{words}</span>") == 2, words


def test_a_loss_that_diverged_is_marked(tmp_path: Path) -> None:
    values = enumerate((2.0, 1.0, math.nan, math.inf, 0.5), start=1)
    lines = [scalars_line(step, START + step, {"train/loss": value}) for step, value in values]
    (tmp_path / part_name(1, 0)).write_bytes(b"".join(lines))
    curves = read_curves(storage.normalise(tmp_path))
    (curve,) = curves.curves
    assert (curve.not_finite, curve.first_not_finite) == (2, 3)
    page = render_report(views.fresh(curves=curves))
    assert "2 values are not finite, the first at step 3" in page
    assert "training: train/loss has 2 values that are no finite number, the first at step 3" in page
    assert "not finite" not in render_report(views.fresh())


def test_thinned_curves_that_were_cut_do_not_say_that_all_is_drawn() -> None:
    curve = Curve(
        name="train/loss", steps=list(range(400)), times=[START + s for s in range(400)], values=[1.0] * 400, rows=4000
    )
    cut = cut_curves(Curves(curves=[curve], rows=4000), [START + 100])
    assert cut.rows == cut.curves[0].rows == 1060 and len(cut.curves[0].steps) == 106
    assert "all drawn" not in render_report(views.fresh(curves=cut))


def test_our_own_mistakes_are_no_missing_files(line: Path, small_shards: str) -> None:
    place = find_place(str(plant(line, small_shards).folder))
    reading = Reading(place, Door(place.line))
    for mistake in (TypeError, AttributeError):

        def read(kind: type[Exception] = mistake) -> None:
            raise kind("ours")

        with pytest.raises(mistake):
            reading.attempt("a part", read)
    assert reading.missing == []


@pytest.mark.parametrize("stage", ["shard", "profile", "train", "export"])
def test_a_damaged_document_leaves_a_record(line: Path, small_shards: str, stage: str) -> None:
    planted = plant(line, small_shards)
    record = RunRecord.parse((planted.folder / "run.json").read_bytes(), where="run.json")
    (storage.local_path(planted.uris[stage]) / "manifest.json").write_text("{")
    results = collect_results(parse_config(record.config, where="record"), planted.uris)
    assert list(results["unread"]) == [stage]
    assert ("metrics" in results) == (stage != "train") and ("data" in results) == (stage != "shard")
    from inspection.report import to_markdown

    text = to_markdown(record.model_copy(update={"results": results}))
    assert f"| not read | what stage {stage} made: " in text


def test_a_run_without_a_word_for_a_day_is_no_running_one(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="killed")
    place = find_place(str(planted.folder))
    assert read_run(place, now=START + DAY_S / 2).state == "silent"
    view = read_run(place, now=START + 2 * DAY_S)
    assert view.state == "unknown" and view.stage("train").state == "stopped"  # type: ignore[union-attr]
    page = render_report(view)
    assert "no record, and no event for a day" in page and "shardline status" in page
    leave_lock(planted)
    assert read_run(place, now=START + 2 * DAY_S).state == "stopped"
    assert json.loads(list_runs(str(line))[0].model_dump_json())["state"] == "stopped"


@pytest.mark.parametrize("seed", [2**63 - 1, 10**18])
def test_a_run_of_the_largest_seed_is_read(line: Path, small_shards: str, seed: int) -> None:
    planted = plant(line, small_shards, sections={"run": {"seed": seed}})
    (found,) = list_runs(str(line))
    assert (found.problem, found.state) == ("", "succeeded") and found.metrics
    view = read_run(find_place(str(planted.folder)))
    assert view.state == "succeeded" and view.config["run"]["seed"] == seed


@pytest.mark.parametrize(
    ("content", "why"), [("{", "Expecting property name"), ('{"a": 1' + 400 * "0" + "}", "an integer of 401 digits")]
)
def test_a_run_that_cannot_be_read_is_called_that(line: Path, small_shards: str, content: str, why: str) -> None:
    planted = plant(line, small_shards)
    (planted.folder / "run.json").write_text(content)
    (found,) = list_runs(str(line))
    assert found.state == "unreadable" and "run.json" in found.problem and why in found.problem
    view = read_run(find_place(str(planted.folder)))
    assert view.state == "unreadable" and why in view.missing[0].reason
    assert "its record cannot be read" in render_report(view)
