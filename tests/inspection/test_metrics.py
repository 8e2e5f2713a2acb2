"""Metrics of stages: their names, which runs are compared by, and their values; and the Markdown summary."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from contracts.artifacts import (
    Contract,
)
from contracts.config import STAGES
from inspection.metrics import (
    MAX_ROWS,
    StageSummary,
    export_metrics,
    output_hashes,
    profile_metrics,
    shard_metrics,
    stage_metrics,
    stage_warnings,
    train_metrics,
)
from inspection.run.headline import RunHeadline, make_headline
from pages.markdown import cell, code
from pages.rendering import write
from tests.inspection.documents import HOSTILE, hostile_shards
from tests.inspection.planted import make_goodput, make_money
from tests.inspection.test_summary import DOCUMENTS

SHARD = {
    "shard_samples": 7,
    "shard_train_samples": 7,
    "shard_validation_samples": 0,
    "shard_test_samples": 0,
    "shard_files": 0,
    "shard_bytes": 0,
    "shard_source_bytes": 70,
    "shard_classes": 2,
    "shard_rejected": 0,
    "shard_ignored": 0,
}
PROFILE = {
    "profile_slot_size": 16,
    "profile_slots_per_rank": 1,
    "profile_num_workers": 1,
    "profile_points": 1,
    "profile_findings": 1,
    "profile_samples_per_s": 123.45,
    "profile_data_time_fraction": 0.5,
}
TRAIN = {
    "train_test_accuracy": 0.98765,
    "train_validation_accuracy": 1.0,
    "train_steps": 10,
    "train_best_step": 10,
    "train_epochs": 1,
    "train_skipped_steps": 0,
    "train_spent_s": 0.0,
}
GOODPUT = (
    "goodput_percent",
    "wall_s",
    "productive_s",
    "start_up_s",
    "data_wait_s",
    "checkpoint_s",
    "evaluation_s",
    "lost_s",
    "recovery_s",
    "attempts",
    "starts",
    "preemptions",
    "interruptions",
    "kills",
    "crashes",
    "lost_steps",
    "node_hours",
)
EXPORT = {
    "export_torch_accuracy": 0.5,
    "export_fp32_accuracy": 0.25,
    "export_test_samples": 5,
    "export_gates": 2,
    "export_gates_passed": 1,
    "export_gates_failed": 0,
    "export_proven": 0,
    "export_engine_bytes": 345678,
    "export_precisions_tried": 2,
    "export_relative_error": 3.4e-4,
    "export_latency_ms": 1.5,
}


def document_of(stage: str, **changes: Any) -> Any:
    return DOCUMENTS[stage].model_copy(update=changes)


def headline_of(*, reused: bool = False) -> RunHeadline:
    return make_headline(state="running", goodput=make_goodput(), money=make_money(), reused=reused)


def check_numbers(stage: str, numbers: Mapping[str, object]) -> None:
    assert numbers
    for name, value in numbers.items():
        assert re.fullmatch(f"{stage}_[a-z0-9_]+", name), name
        assert isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), name


@pytest.mark.parametrize(
    ("stage", "expected"), [("shard", SHARD), ("profile", PROFILE), ("train", TRAIN), ("export", EXPORT)]
)
def test_names_and_values(stage: str, expected: dict[str, float]) -> None:
    found = stage_metrics(DOCUMENTS[stage])
    check_numbers(stage, found)
    assert found == expected


def test_copies_are_counted_where_they_were_looked_for() -> None:
    found = shard_metrics(hostile_shards())
    assert (found["shard_rejected"], found["shard_copies"], found["shard_leaking_groups"]) == (1, 2, 1)


def test_metrics_of_a_profile_that_are_not_always_measured() -> None:
    measured = {"usd_per_million_samples": 0.5, "units_per_s": {"tokens": 9.0}}
    points = [point.model_copy(update=measured) for point in DOCUMENTS["profile"].points]  # type: ignore[attr-defined]
    report = document_of("profile", points=points, wall_s=7.0)
    found = {name: value for name, value in profile_metrics(report).items() if name not in PROFILE}
    assert found == {
        "profile_tokens_per_s": 9.0,
        "profile_usd_per_million_samples": 0.5,
        "profile_wall_s": 7.0,
    }
    assert profile_metrics(document_of("profile", method="off")) == {}


def test_goodput_and_cost_of_a_training_and_of_one_that_is_reused() -> None:
    goodput = make_goodput()
    for prefix, reused in (("train", False), ("train_reused", True)):
        expected = {f"{prefix}_{name}": getattr(goodput, name) for name in GOODPUT}
        assert train_metrics(None, goodput, headline_of(reused=reused)) == expected | {f"{prefix}_cost_usd": 1.31}


def test_a_metric_of_a_task_with_the_name_of_one_of_ours_stands_beside_it() -> None:
    trained = document_of("train", metrics={"wall_s": 1.5, "steps": 2.5, "test_accuracy": 0.5, "cost_usd": 7.0})
    numbers = train_metrics(trained, make_goodput(), headline_of())
    assert (numbers["train_wall_s"], numbers["train_metric_wall_s"]) == (4900.0, 1.5)
    assert (numbers["train_steps"], numbers["train_metric_steps"]) == (10, 2.5)
    assert (numbers["train_cost_usd"], numbers["train_metric_cost_usd"]) == (1.31, 7.0)
    assert numbers["train_test_accuracy"] == 0.5
    # The name does not depend on what is known.
    assert "train_wall_s" not in train_metrics(trained, None, None)


@pytest.mark.parametrize("value", [math.nan, 10**400])
def test_what_no_float_is_near_to_is_no_metric(value: float) -> None:
    numbers = shard_metrics(document_of("shard", num_rejected=value))
    assert "shard_rejected" not in numbers and numbers["shard_samples"] == 7


def test_the_change_by_an_export_is_that_of_what_ships() -> None:
    assert export_metrics(document_of("export", precision="fp32"))["export_accuracy_change"] == -0.25


def test_hashes_of_outputs() -> None:
    assert output_hashes(DOCUMENTS["train"]) == {"parameters_sha256": "ab"}
    graphs = {"graph_fp32_sha256": "f1" * 32, "graph_fp16_sha256": "f2" * 32}
    hashes = {"checkpoint_sha256": "ab", **graphs, "served_sha256": "cd" * 32}
    assert output_hashes(DOCUMENTS["export"]) == hashes
    assert output_hashes(DOCUMENTS["shard"]) == output_hashes(DOCUMENTS["profile"]) == {}


def summary_of(stage: str, document: Contract, metrics: dict[str, float]) -> str:
    hashes, warnings = output_hashes(document), stage_warnings(document)
    return write(StageSummary(stage, f"gs://bucket/{HOSTILE}", "ab", document, metrics, hashes, warnings))


def check_markdown(lines: list[str]) -> None:
    """Assert that every table has as many cells in each row as in its head, and text stays in its line."""
    columns = 0
    for line in lines:
        assert "\n" not in line and not re.search("[\x00-\x1f\u202a-\u202e]", line)
        if not line.startswith("|"):
            columns = 0
            continue
        assert line.endswith("|")
        count = line.count("|") - 1
        assert columns in (0, count), line
        columns = count


@pytest.mark.parametrize("stage", STAGES)
def test_hostile_text_is_text_and_the_table_is_whole(stage: str) -> None:
    warnings = {"warnings": [HOSTILE]} if stage in ("shard", "profile") else {}
    document = document_of(stage, made_from={HOSTILE: HOSTILE}, fingerprint=HOSTILE, **warnings)
    text = summary_of(stage, document, {HOSTILE: 1.0})
    check_markdown(text.splitlines())
    assert text.count("&#60;img src=x") == (6 if warnings else 5)
    assert "<" not in text and "\u202e" not in text and "](" not in text and "http://" not in text


def test_a_summary_has_a_bounded_size_and_says_how_much_it_leaves_out() -> None:
    text = "<" * 1000
    many = {f"{place}{text}": text for place in range(5000)}
    document = document_of("train", made_from=many)
    summary = write(StageSummary(text, text, text, document, dict.fromkeys(many, 1e300), many, [text] * 5000))
    assert len(summary.encode()) < 1_000_000
    assert summary.count("- and 4,960 more in ") == 4 and MAX_ROWS == 40
    assert len(summary_of("train", DOCUMENTS["train"], TRAIN).splitlines()) < 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a_b c", "a_b c"),
        ("_a_", "&#95;a&#95;"),
        ("a\n\tb", "a b"),
        ("x: http://a.b/c", "x: http&#58;//a.b/c"),
        ("a" * 400, "a" * 299 + "…"),
    ],
)
def test_text_of_a_cell(text: str, shown: str) -> None:
    assert cell(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"), [("gs://a/b_c", "`gs://a/b_c`"), ("a`b", "a&#96;b"), ("a|b", "a&#124;b"), ("", "")]
)
def test_code(text: str, shown: str) -> None:
    assert code(text) == shown
