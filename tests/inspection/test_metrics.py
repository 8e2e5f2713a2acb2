"""Metrics of stages: their names, which runs are compared by, and their values; classes for Vertex AI; the summary."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from kfp import dsl

from contracts.artifacts import Contract, GoodputRecord
from contracts.artifacts.classification import RocCurve
from inspection.headline import RunHeadline, make_headline
from inspection.metrics import (
    MAX_CATEGORIES,
    MAX_ROWS,
    classification_metadata,
    output_hashes,
    stage_metrics,
    stage_warnings,
    summarise,
    train_metrics,
)
from inspection.view import Money
from tests.inspection.documents import DOCUMENTS, HOSTILE, make_evaluation

# Of an artifact's metadata, by the reference of Vertex AI.
METADATA_LIMIT = 200_000
# Two classes of ten samples each, told apart but for two.
CURVE = RocCurve(area=0.9, points=[(0.9, 0, 5), (0.5, 1, 9), (0.2, 10, 10)])
CONFUSION = [(0, 0, 9), (0, 1, 1), (1, 0, 1), (1, 1, 9)]
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


RECORD = GoodputRecord.model_validate(
    dict.fromkeys(GOODPUT, 1)
    | {"wall_s": 4900.0, "between_attempts_s": 0.0, "stop_s": 0.0, "steps": 9, "preemptions_per_node_hour": None}
)
MONEY = Money(
    node_hours=2.72,
    machine="g2-standard-8",
    strategy="SPOT",
    cost_usd=1.31,
    on_demand_usd=None,
    source="",
    as_of="",
    assumptions=[],
)


def document_of(stage: str, **changes: Any) -> Any:
    return DOCUMENTS[stage].model_copy(update=changes)


def headline_of(*, reused: bool = False) -> RunHeadline:
    return make_headline(state="running", goodput=RECORD, money=MONEY, reused=reused)


def check_numbers(stage: str, numbers: Mapping[str, object]) -> None:
    assert numbers
    for name, value in numbers.items():
        assert re.fullmatch(f"{stage}_[a-z0-9_]+", name), name
        assert isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), name


@pytest.mark.parametrize(
    ("stage", "expected"), [("shard", SHARD), ("profile", PROFILE), ("train", TRAIN), ("export", EXPORT)]
)
def test_names_and_values(stage: str, expected: dict[str, float]) -> None:
    metrics = stage_metrics(DOCUMENTS[stage])
    check_numbers(stage, metrics)
    assert metrics == expected


def test_goodput_and_cost_of_a_training_and_of_one_that_is_reused() -> None:
    for prefix, reused in (("train", False), ("train_reused", True)):
        expected = {f"{prefix}_{name}": getattr(RECORD, name) for name in GOODPUT}
        assert train_metrics(None, RECORD, headline_of(reused=reused)) == expected | {f"{prefix}_cost_usd": 1.31}


def test_a_metric_of_a_task_with_the_name_of_one_of_ours_stands_beside_it() -> None:
    trained = document_of("train", metrics={"wall_s": 1.5, "steps": 2.5, "test_accuracy": 0.5, "cost_usd": 7.0})
    numbers = train_metrics(trained, RECORD, headline_of())
    assert (numbers["train_wall_s"], numbers["train_metric_wall_s"]) == (4900.0, 1.5)
    assert (numbers["train_steps"], numbers["train_metric_steps"]) == (10, 2.5)
    assert (numbers["train_cost_usd"], numbers["train_metric_cost_usd"]) == (1.31, 7.0)
    assert numbers["train_test_accuracy"] == 0.5
    # The name does not depend on what is known.
    assert "train_wall_s" not in train_metrics(trained, None, None)


def test_hashes_of_outputs() -> None:
    assert output_hashes(DOCUMENTS["train"]) == {"parameters_sha256": "ab"}
    graphs = {"graph_fp32_sha256": "f1" * 32, "graph_fp16_sha256": "f2" * 32}
    hashes = {"checkpoint_sha256": "ab", **graphs, "served_sha256": "cd" * 32}
    assert output_hashes(DOCUMENTS["export"]) == hashes
    assert output_hashes(DOCUMENTS["shard"]) == output_hashes(DOCUMENTS["profile"]) == {}


def summary_of(stage: str, document: Contract, metrics: dict[str, float]) -> str:
    return summarise(stage, f"gs://bucket/{HOSTILE}", "ab", document, metrics, stage_warnings(document))


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


@pytest.mark.parametrize("stage", ["shard", "train"])
def test_hostile_text_is_text_and_the_table_is_whole(stage: str) -> None:
    warnings = {"warnings": [HOSTILE]} if stage in ("shard", "profile") else {}
    document = document_of(stage, made_from={HOSTILE: HOSTILE}, fingerprint=HOSTILE, **warnings)
    text = summary_of(stage, document, {HOSTILE: 1.0})
    check_markdown(text.splitlines())
    assert text.count("&#60;img src=x") == (6 if warnings else 5)
    assert "<" not in text and "\u202e" not in text and "](" not in text and "http://" not in text


def test_a_summary_has_a_bounded_size_and_counts_what_it_leaves_out() -> None:
    text = "<" * 1000
    many = {f"{place}{text}": text for place in range(5000)}
    document = document_of("train", made_from=many)
    summary = summarise(text, text, text, document, dict.fromkeys(many, 1e300), [text] * 5000)
    assert len(summary.encode()) < 1_000_000
    assert summary.endswith(f"- and {3 * 5000 + 3 - 3 * MAX_ROWS:,} more in the manifest")
    assert len(summary_of("train", DOCUMENTS["train"], TRAIN).splitlines()) < 20


def test_classes_are_what_kfp_would_write() -> None:
    metadata = classification_metadata(make_evaluation(["cat", "dog"], CONFUSION, CURVE))
    expected = dsl.ClassificationMetrics()
    expected.log_confusion_matrix(["cat", "dog"], [[9, 1], [1, 9]])
    expected.log_roc_curve(
        fpr=[0.0, 0.0, 0.1, 1.0, 1.0], tpr=[0.0, 0.5, 0.9, 1.0, 1.0], threshold=[1.0, 0.9, 0.5, 0.2, 0.0]
    )
    assert {name: metadata[name] for name in expected.metadata} == expected.metadata
    assert set(metadata) == {*expected.metadata, "note"}
    assert "confidenceMetrics" not in classification_metadata(make_evaluation(["cat", "dog", "ox"], CONFUSION))


def test_of_very_many_classes_the_confused_ones_are_shown() -> None:
    count = 1000
    confusion = [(place, place, 5) for place in range(count)] + [(7, 900, 3), (900, 8, 2), (41, 42, 1)]
    report = make_evaluation([f"class {place}" for place in range(count)], confusion, left_out=4)
    metadata = classification_metadata(report)
    names = [entry["displayName"] for entry in metadata["confusionMatrix"]["annotationSpecs"]]
    rows = [entry["row"] for entry in metadata["confusionMatrix"]["rows"]]
    assert len(names) == MAX_CATEGORIES == len(rows) == len(rows[0])
    assert {"class 7", "class 8", "class 41", "class 42", "class 900"} <= set(names)
    assert rows[names.index("class 7")][names.index("class 900")] == 3
    # Nothing is lost but what the evaluation itself has left out.
    assert sum(map(sum, rows)) == report.samples - 4
    note = metadata["note"]
    assert "39 of 1,000 classes with most mistakes" in note and "4 misclassified samples" in note
    assert len(json.dumps(metadata)) < METADATA_LIMIT


def test_a_task_that_is_no_classification_has_a_note() -> None:
    report = make_evaluation(["a"], [(0, 0, 1)]).model_copy(update={"task": "image_multilabel"})
    note = {"note": "The task image_multilabel does not classify samples into one class."}
    assert classification_metadata(report) == note
