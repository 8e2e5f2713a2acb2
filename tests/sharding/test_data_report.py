"""The data report: what the stage says to data that differs from that of the run before, on real shards."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.artifacts.data_report import DataReport
from contracts.config import ValidateSection
from contracts.stage import run_stage
from records.drawn import load_drawn
from records.report.fields import FieldData, compare_field
from records.report.run import report_uri
from sharding.commit import drawn
from sharding.task import shard

ROWS = 600
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def write_table(path: Path, seed: int, *, rows: int = ROWS, moved: float = 0.0, towns: str = "abc") -> str:
    """Write rows of which two thirds are new with each seed; `moved` shifts the size by so many deviations."""
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "town", "size", "kind"])
        for number in range(rows):
            size = "" if number % 50 == 0 else f"{random.normal(moved):.6f}"
            name = f"{'same' if number % 3 == 0 else seed}-{number}" + "x" * int(random.integers(0, 9))
            writer.writerow([name, towns[int(random.integers(len(towns)))], size, ("low", "high")[number % 2]])
    return str(path)


def run(line: Path, run_id: str, source: str, capfd: pytest.CaptureFixture[str], **validate: Any) -> tuple[int, str]:
    config: dict[str, Any] = {
        "sharding": {
            "source": source,
            "fields": {
                "text": {"column": "name", "kind": "text"},
                "town": {"column": "town", "kind": "category"},
                "size": {"column": "size", "kind": "number", "missing": "keep"},
                "label": {"column": "kind", "kind": "class"},
            },
            "splits": SPLITS,
        },
        "validate": validate,
    }
    return stage(line, run_id, config, capfd)


def stage(line: Path, run_id: str, config: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run_stage("shard", shard, ["--line", str(line), "--run", run_id, "--config-json", json.dumps(config)])
    return code, capfd.readouterr().err


def report_of(line: Path, run_id: str) -> DataReport:
    return DataReport.model_validate_json(storage.read_bytes(report_uri(storage.normalise(line), run_id)))


def test_tables_that_drift_lose_a_class_and_move_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = tmp_path / "line"
    first = write_table(tmp_path / "1.csv", 1)
    assert run(line, "20260101", first, capfd)[0] == 0
    found = report_of(line, "20260101")
    assert found.comparisons == [] and found.verdict == "ok"
    by_name = {field.name: field for field in found.fields}
    assert list(by_name) == ["label", "bytes", "text", "town", "size"]
    assert by_name["size"].missing == pytest.approx(0.02, abs=0.01)
    assert found.classes.keys() == {"high", "low"}

    # Other rows of the same kind: nothing to say.
    assert run(line, "20260102", write_table(tmp_path / "2.csv", 2), capfd)[0] == 0
    (compared,) = report_of(line, "20260102").comparisons
    assert compared.of == "run 20260101" and not compared.same
    assert {field.verdict for field in compared.fields} == {"ok"}
    assert all(field.p is not None and field.excess is not None and field.excess < 0.1 for field in compared.fields)

    # A number that has moved: a warning, and with drift: fail the end, before anything else is done.
    moved = write_table(tmp_path / "3.csv", 3, moved=1.0)
    code, said = run(line, "20260103", moved, capfd)
    assert code == 0 and "warning: size: drifted: excess PSI" in said and "median" in said
    code, said = run(line, "20260103", moved, capfd, drift="fail")
    assert code == 2
    for words in ("size: drifted", "validate.fail_excess 0.25", "compared with run 20260102", "are finished"):
        assert words in said, said
    assert report_of(line, "20260103").verdict == "fail"
    # Its own limit, which a run without an earlier one has too.
    assert (
        run(line, "20260103", moved, capfd, drift="fail", fields={"size": {"fail_excess": 5, "warn_excess": 5}})[0] == 0
    )
    code, said = run(tmp_path / "other", "1", moved, capfd, fields={"size": {"most": 2, "max_missing": 0.001}})
    assert code == 2 and "above validate.fields.size.most 2" in said and "max_missing" in said
    code, said = run(line, "20260103", moved, capfd, fields={"sise": {"most": 2}})
    assert code == 2 and "sise" in said and "label, size, text, town" in said

    # A category that is new, one that is gone.
    towns = write_table(tmp_path / "4.csv", 4, moved=1.0, towns="bcd")
    code, said = run(line, "20260104", towns, capfd, new_classes="fail")
    assert code == 2 and "town: new d (validate.new_classes is fail)" in said
    (compared,) = report_of(line, "20260104").comparisons
    assert (compared.new_classes, compared.vanished_classes) == ({"town": ["d"]}, {"town": ["a"]})
    # Few samples are not judged.
    code, said = run(line, "20260105", write_table(tmp_path / "5.csv", 5, rows=150), capfd)
    assert code == 0 and "drifted" not in said
    (compared,) = report_of(line, "20260105").comparisons
    assert "too few samples" in compared.fields[0].said[0] and compared.fields[0].psi is None


def test_samples_that_moved_between_splits_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = write_table(tmp_path / "1.csv", 1)
    config: dict[str, Any] = {
        "sharding": {
            "source": source,
            "fields": {
                "size": {"column": "size", "kind": "number", "missing": "keep"},
                "label": {"column": "kind", "kind": "class"},
            },
            "splits": SPLITS,
        },
    }
    assert stage(tmp_path / "line", "1", config, capfd)[0] == 0
    before_uri = report_of(tmp_path / "line", "1").shards
    before = ShardManifest.load(before_uri)
    config["sharding"]["splits"] = {"train": 0.6, "validation": 0.2, "test": 0.2}
    code, said = stage(tmp_path / "line", "2", config, capfd)
    assert code == 2 and "samples are in another split than before" in said
    moved = report_of(tmp_path / "line", "2").comparisons[0].moved
    now = report_of(tmp_path / "line", "2").samples
    # Each split is a range of hashes: all that left training moved, and some from validation to test.
    assert moved >= before.splits["train"].samples - now["train"] > 0
    config["validate"] = {"moved_samples": "warn"}
    code, said = stage(tmp_path / "line", "2", config, capfd)
    assert code == 0 and "warning" in said
    # Earlier data that is damaged is no reason to stop.
    config["validate"] = {}
    for part in before.index_parts:
        Path(part.uri(before_uri).removeprefix("file://")).write_bytes(b"")
    code, said = stage(tmp_path / "line", "2", config, capfd)
    assert code == 0 and "warning: the data was not compared" in said, said


def write_pictures(root: Path, number: int, *, brighter: int) -> None:
    for place in range(number):
        pixels = np.random.default_rng(place).integers(0, 120, (16, 16, 3), np.uint8) + np.uint8(brighter)
        path = root / ("cat", "dog")[place % 2] / f"{brighter}-{place}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(pixels))
        os.utime(path, ns=(10**18, 10**18))


def test_brighter_images_of_an_increment_are_seen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drawn samples of an increment are those of its parent and its own; brightness is that of the pixels."""
    write_pictures(tmp_path / "raw", 400, brighter=0)
    config: dict[str, Any] = {
        "sharding": {"source": str(tmp_path / "raw"), "incremental": True, "splits": SPLITS},
    }
    assert stage(tmp_path / "line", "1", config, capfd)[0] == 0
    first = report_of(tmp_path / "line", "1")
    shares = {field.name: field.quantiles for field in first.fields}
    assert list(shares) == ["label", "bytes", "width", "height", "brightness", "contrast"]
    brightness = shares["brightness"]
    assert brightness is not None and brightness[3] == pytest.approx(59.5 / 255, rel=0.05)
    write_pictures(tmp_path / "raw", 400, brighter=100)
    code, said = stage(tmp_path / "line", "2", config, capfd)
    assert code == 0 and "brightness: drifted" in said, said
    second = report_of(tmp_path / "line", "2")
    manifest = ShardManifest.load(second.shards)
    table = load_drawn(manifest, second.shards)
    assert manifest.generation == 1 and table is not None
    assert second.drawn == len(table.hashes) == second.samples["train"] > first.samples["train"]
    assert ((table.columns["brightness"] > 0.5).mean()) == pytest.approx(0.5, abs=0.06)

    # More drawn samples than are held: the share is halved, and those below it stay, of parent and increment alike.
    monkeypatch.setattr(drawn, "MAX_ROWS", 500)
    write_pictures(tmp_path / "raw", 20, brighter=50)
    assert stage(tmp_path / "line", "3", config, capfd)[0] == 0
    third = report_of(tmp_path / "line", "3")
    manifest = ShardManifest.load(third.shards)
    halved = load_drawn(manifest, third.shards)
    assert manifest.generation == 2 and manifest.drawn is not None and halved is not None
    assert manifest.drawn.share == 0.5 and third.drawn == len(halved.hashes) <= 500
    assert set(table.hashes[table.hashes < 0.5]) < set(halved.hashes) and halved.hashes.max() < 0.5


def test_a_category_that_vanished_whole_is_a_change_and_no_fault() -> None:
    none, some = np.full(300, np.nan), np.repeat([1.0, 2.0], 150)
    sides = [FieldData("town", "category", values, {}, 300) for values in (none, some)]
    empty = compare_field(sides[0], sides[1], ValidateSection(), 1)
    assert empty.psi is None and "too few" in empty.said[0]
    counted = [
        FieldData("town", "category", none, {None: 300}, 300),
        FieldData("town", "category", some, {1.0: 150, 2.0: 150, None: 0}, 300),
    ]
    found = compare_field(counted[0], counted[1], ValidateSection(drift="fail"), 1)
    assert found.verdict == "fail" and found.missing == 1.0
