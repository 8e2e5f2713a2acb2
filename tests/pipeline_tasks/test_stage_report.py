"""Reports on stages whose documents are damaged, or much larger than pages and artifacts' metadata may be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.result import leave_result
from inspection.stages.told import Told, cut
from pages.markdown import Markdown
from pages.stage import MAX_ROWS, First, first
from pipeline_tasks.outputs import MAX_METADATA_BYTES, bound_metadata
from pipeline_tasks.stage_report import MAX_PAGE_BYTES, to_markdown
from rehearsal.pipelines.artifact_metadata import find_excess
from tests.inspection.stages.test_summaries import LATENCY, check_markdown
from tests.inspection.test_summary import DOCUMENTS
from tests.pipeline_tasks.test_task import RUN, report, reported

Change = Callable[[dict[str, Any]], None]
MANY, LONG = 5000, 3_000_000


def report_on(tmp_path: Path, stage: str, change: Change) -> tuple[str, dict[str, dict[str, Any]]]:
    """Report on a stage whose manifest was changed; return its summary and the metadata of its artifacts."""
    line = storage.normalise(tmp_path / "line")
    content = json.loads(DOCUMENTS[stage].to_json())
    change(content)
    uri = storage.join(line, stage, "0123456789abcdef")
    storage.replace(storage.join(uri, MANIFEST_NAME), json.dumps(content).encode())
    leave_result(line, RUN, stage, uri, reused=False)
    assert report(tmp_path, line, stage) == 0
    return (tmp_path / "out" / "summary").read_text(), reported(tmp_path)


def many(name: str, change: Callable[[int], Any]) -> Change:
    def apply(document: dict[str, Any]) -> None:
        document[name] = [change(number) for number in range(MANY)]

    return apply


def many_by_name(name: str, value: Any, count: int = MANY) -> Change:
    def apply(document: dict[str, Any]) -> None:
        document[name] = {f"n{number}": value for number in range(count)}

    return apply


def set_at(path: str, value: Any) -> Change:
    def apply(document: dict[str, Any]) -> None:
        *folders, name = path.split(".")
        for folder in folders:
            document = document[folder]
        document[name] = value

    return apply


GATE = {"precision": "fp16", "status": "passed", "ran": "r" * 300, "reason": "<" * 3000}
FINDING = {"title": "t", "severity": "bad", "change": "c", "gain": None, "gain_from": ""}
IMAGES = {"modes": {}, "width": None, "height": None}
ENGINE = json.loads(DOCUMENTS["export"].to_json())["engines"][0]


def fill_all(document: dict[str, Any]) -> None:
    """Fill lists with text that is five times as long as a character reference: together they are above 1 MB."""
    text = "<" * 1000
    gate = {"precision": text, "status": "failed", "ran": text, "reason": text}
    document["gates"] = [{**gate, "name": f"{text}{number}"} for number in range(MANY)]
    document["latency_left_out"] = {f"{number}{text}": text for number in range(MANY)}
    document["tried"] = [
        {"precision": f"{number}{text}", "outcome": "failed", "reason": text} for number in range(MANY)
    ]


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        ("export", fill_all, "lines are left out, as more is not shown. The manifest has all."),
        ("export", many("gates", lambda n: {**GATE, "name": f"g{n}"}), f"The first {MAX_ROWS} of 5,000"),
        ("export", many("latency", lambda n: {**LATENCY.model_dump(), "batch": n + 1}), "The first 100 of 5,000"),
        ("export", many("engines", lambda n: {**ENGINE, "target": f"sm{10 + n % 900}"}), "The first 100 of 5,000"),
        ("export", many_by_name("latency_left_out", "x" * 400), "The first 100 of 5,000"),
        ("profile", many("warnings", lambda n: "w" * 300), "The first 100 of 5,000"),
        ("profile", many("findings", lambda n: {**FINDING, "rule": f"R{n}", "evidence": []}), "The first 100 of 5,000"),
        ("profile", set_at("findings", [{**FINDING, "rule": "r" * LONG, "evidence": ["e"] * MANY}]), "more lines"),
        ("train", many_by_name("environment", "v" * 300), "The first 100 of 5,00"),
        ("train", many_by_name("metrics", 1.0, 20_000), "metrics are in the file alone"),
        ("train", set_at("metrics", {"m" * LONG: 1.0}), "1 metrics are in the file alone"),
        ("train", set_at("parameters_sha256", "a" * LONG), "…"),
        ("train", many_by_name("made_from", "h" * 64), "The first 100 of 5,000"),
        (
            "shard",
            set_at("images", {**IMAGES, "formats": {f"F{number}" * 50: 1 for number in range(MANY)}}),
            "and 4,980 more",
        ),
    ],
)
def test_what_is_larger_than_the_consoles_take_is_cut_and_said(
    tmp_path: Path, stage: str, change: Change, said: str
) -> None:
    summary, found = report_on(tmp_path, stage, change)
    assert len(summary.encode()) < MAX_PAGE_BYTES
    assert said in summary
    check_markdown(summary.splitlines())
    # The way back is there, whatever else is not.
    assert "## Made of" in summary and "/0123456789abcdef`" in summary
    for name, metadata in found.items():
        message = struct_pb2.Struct()
        message.update(metadata)
        assert find_excess(message) == "", name
        if name != "metrics":
            assert metadata["contract_uri"].endswith("/0123456789abcdef/manifest.json")
    # The file of the metrics has all of them.
    told = json.loads((tmp_path / "out" / "metrics").read_text())
    kept = {name: value for name, value in found["metrics"].items() if name not in ("kept", "left_out")}
    assert kept.items() <= told.items()
    assert found["metrics"].get("left_out", 0) == len(told) - len(kept)


def test_gates_that_did_not_pass_are_shown_first(tmp_path: Path) -> None:
    gates = [{**GATE, "name": f"g{number}", "status": "passed"} for number in range(MANY)]
    gates[-1]["status"] = "failed"
    summary, _ = report_on(tmp_path, "export", set_at("gates", gates))
    assert f"| g{MANY - 1} | fp16 | failed |" in summary and "| g98 |" in summary and "| g99 |" not in summary


def test_a_list_of_counts_that_is_too_short_is_said(tmp_path: Path) -> None:
    summary, found = report_on(tmp_path, "shard", set_at("splits.train.samples_by_class", [3]))
    assert "| 1 | not counted | 0 | 0 |" in summary
    assert "a count has no class, in: train." in summary
    assert found["metrics"]["shard_samples"] == 7


def test_a_stage_that_ended_well_is_reported_whatever_its_document_says(tmp_path: Path) -> None:
    summary, found = report_on(tmp_path, "profile", set_at("points", []))
    assert summary.startswith("# profile\n\nthe stage cannot be shown: ")
    assert found["summary"]["contract_uri"].endswith("/manifest.json")
    assert (tmp_path / "out" / "uri").read_text().endswith("/0123456789abcdef")


def test_a_summary_that_cannot_be_written_takes_no_metric_with_it(tmp_path: Path) -> None:
    # More digits than Python writes out, and more than any float holds.
    summary, found = report_on(tmp_path, "train", set_at("epoch", 10**400))
    assert "train_epochs" not in found["metrics"] and found["metrics"]["train_test_accuracy"] == 0.98765
    assert found["summary"]["parameters_sha256"] == "ab" and "## Made of" in summary


def test_lines_that_cannot_be_made_are_said_and_the_way_back_stays(tmp_path: Path) -> None:
    def fail() -> Markdown:
        raise ZeroDivisionError("no <samples>")

    line = storage.normalise(tmp_path)
    uri = storage.join(line, "shard", "f")
    storage.replace(storage.join(uri, MANIFEST_NAME), DOCUMENTS["shard"].to_json())
    result = leave_result(line, RUN, "shard", uri, reused=False)
    summary = to_markdown(result, DOCUMENTS["shard"], Told({"shard_samples": 1}, fail, {"a": "b"}))
    assert "the summary cannot be shown: no &#60;samples&#62;" in summary
    assert "- a `b`" in summary and uri in summary


def test_metadata_are_kept_as_far_as_there_is_room() -> None:
    matrix = {"rows": [[1] * 100] * 100}
    fields = {"a": "x" * 5000, "b" * 500: 1, **{f"n{number}": "y" * 1000 for number in range(1000)}, "matrix": matrix}
    kept, left_out = bound_metadata(fields)
    assert kept["matrix"] == matrix and kept["a"].endswith("x…") and "b" * 500 not in kept
    assert len(kept) + left_out == len(fields) and len(kept) > 100
    assert len(json.dumps(kept)) <= MAX_METADATA_BYTES
    assert list(kept) == [name for name in fields if name in kept]
    assert bound_metadata({"a": 1, "b": "c"}) == ({"a": 1, "b": "c"}, 0)


def test_lines_are_cut_where_they_do_not_fit() -> None:
    lines = ["ä" * 100] * 50
    assert cut(lines, 50 * 201 + 1000) == lines
    short = cut(lines, 2000)
    assert sum(len(line.encode()) + 1 for line in short) <= 2000
    left = len(lines) - (len(short) - 2)
    assert short[-1].startswith(f"The summary is cut here: {left} of 50 lines") and 0 < left < 50
    assert first([1, 2, 3], 2) == First((1, 2), 3)
