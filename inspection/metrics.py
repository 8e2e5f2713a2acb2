"""Metrics, classification metadata and Markdown summary of a finished stage, as Vertex AI and Kubeflow show them.

The name of a metric begins with its stage and is stable: runs are compared by it, in artifacts and experiments. Values
that were not measured are omitted, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.artifacts import (
    CheckpointManifest,
    Contract,
    EvaluationReport,
    ExportManifest,
    GoodputRecord,
    ProfileReport,
    RunRecord,
    ShardManifest,
    Verification,
)
from contracts.artifacts.classification import ClassificationDetails
from contracts.artifacts.export import PARITY
from contracts.proof import proven_on
from inspection.documents import as_number
from inspection.headline import RunHeadline, headline, headline_of_record
from inspection.money import find_money
from inspection.pages.quantities import UNPRINTABLE, shorten
from inspection.pages.rendering import render_markdown
from inspection.training import evenly
from inspection.view import RunView

# Rows of each list of a summary, to stay below the consoles' limit of 1 MB.
MAX_ROWS = 40
# Of a confusion matrix and of a ROC curve: metadata of an artifact are limited to 200 kB
# (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts).
MAX_CATEGORIES, MAX_POINTS = 40, 100
_NAME_LIMIT = 60
# Fields of the goodput record that are metrics.
_GOODPUT = sorted(
    {*GoodputRecord.model_fields} - {"between_attempts_s", "stop_s", "steps", "preemptions_per_node_hour"}
)
# Names of training metrics, reserved against metrics of the task.
_RESERVED = {*_GOODPUT, "steps", "best_step", "epochs", "skipped_steps", "spent_s", "cost_usd"}


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics with a finite value."""
    return {name: value for name, value in metrics.items() if value is not None and as_number(value) is not None}


def shard_metrics(shards: ShardManifest) -> dict[str, float]:
    """Return the metrics of a set of shards."""
    metrics: dict[str, float] = {
        "shard_samples": sum(split.samples for split in shards.splits.values()),
        **{f"shard_{name}_samples": split.samples for name, split in shards.splits.items()},
        "shard_files": len(shards.shards),
        "shard_bytes": sum(shards.shards.bytes),
        "shard_source_bytes": sum(split.source_bytes for split in shards.splits.values()),
        "shard_classes": len(shards.classes),
        "shard_rejected": shards.count_rejected,
        "shard_ignored": shards.count_ignored,
    }
    if shards.duplicates is not None:
        metrics["shard_copies"] = shards.duplicates.copies
        metrics["shard_leaking_groups"] = shards.duplicates.leaking_groups
    return finite(metrics)


def profile_metrics(report: ProfileReport) -> dict[str, float]:
    """Return the metrics of a profile report; none where profiling is off.

    Raises:
        DataError: The choice is marked as measured, but is not one of the points.
    """
    if report.method == "off":
        return {}
    choice, point, estimate = report.choice, report.chosen_point(), report.estimate
    return finite(
        {
            "profile_slot_size": choice.slot_size,
            "profile_slots_per_rank": choice.slots_per_rank,
            "profile_num_workers": choice.num_workers,
            "profile_points": sum(entry.samples_per_s is not None for entry in report.points),
            "profile_findings": len(report.findings),
            "profile_samples_per_s": point.samples_per_s,
            **{f"profile_{unit}_per_s": value for unit, value in point.units_per_s.items()},
            "profile_data_time_fraction": point.data_time_fraction,
            "profile_usd_per_million_samples": point.usd_per_million_samples,
            "profile_gpu_busy_fraction": report.indicators.gpu_busy_fraction,
            "profile_mfu": report.indicators.mfu,
            "profile_wall_s": report.wall_s,
            "profile_estimated_hours": estimate.hours if estimate else None,
            "profile_estimated_usd": estimate.usd if estimate else None,
        }
    )


def train_metrics(
    trained: CheckpointManifest | None, goodput: GoodputRecord | None, figures: RunHeadline | None
) -> dict[str, float]:
    """Return the known metrics of a training; an unfinished one has a cost too.

    A metric of the task with a reserved name becomes `train_metric_NAME`. Time, preemptions and cost of a reused
    training become `train_reused_NAME`, so that sums over runs do not count them twice.

    Args:
        trained: Its manifest; None: it has not finished.
        goodput: None if unknown.
        figures: Headline of the run; None: the run cannot be read.
    """
    metrics: dict[str, float | None] = {}
    if trained is not None:
        for name, value in trained.metrics.items():
            metrics[f"train_metric_{name}" if name in _RESERVED else f"train_{name}"] = value
        metrics |= {
            "train_steps": trained.step,
            "train_best_step": trained.best_step,
            "train_epochs": trained.epoch,
            "train_skipped_steps": trained.skipped_steps,
            "train_spent_s": trained.spent_s,
        }
    if goodput is not None:
        prefix = "train_reused_" if figures is not None and figures.training_reused else "train_"
        metrics |= {f"{prefix}{name}": getattr(goodput, name) for name in _GOODPUT}
    if figures is not None:
        metrics |= figures.numbers()
    return finite(metrics)


def export_metrics(exported: ExportManifest, verification: Verification | None = None) -> dict[str, float]:
    """Return the metrics of an export.

    Args:
        exported: Its manifest.
        verification: Later verification of its engine on a GPU.
    """
    metric, values = exported.headline.metric, exported.headline_values
    metrics: dict[str, float | None] = {
        **{f"export_{name}_{metric}": value for name, value in values.items()},
        "export_test_samples": exported.proof_samples,
        "export_gates": len(exported.gates),
        "export_gates_passed": sum(gate.status == "passed" for gate in exported.gates),
        "export_gates_failed": sum(gate.status == "failed" for gate in exported.gates),
        "export_proven": int(bool(proven_on(exported, verification))),
        "export_precisions_tried": len(exported.tried),
        "export_latency_ms": next((entry.median_ms for entry in exported.latency if entry.batch == 1), None),
    }
    if exported.engine is not None:
        metrics["export_engine_bytes"] = exported.engine.bytes
    if (shipped := values.get(exported.precision)) is not None and "torch" in values:
        metrics[f"export_{metric}_change"] = shipped - values["torch"]
    parity = [gate for gate in exported.gates if (gate.name, gate.precision) == (PARITY, exported.precision)]
    for gate in sorted(parity, key=lambda gate: gate.file == exported.served):
        # The served file, if it ran, comes last.
        if isinstance(error := gate.figures.get("relative_error"), float):
            metrics["export_relative_error"] = error
    return finite(metrics)


def row_metrics(
    record: RunRecord, documents: Mapping[str, Contract], verification: Verification | None
) -> dict[str, float]:
    """Return the known metrics of a run that has ended: its row in an experiment.

    `documents` are the manifests of its stages, by stage.
    """
    metrics: dict[str, float | None] = {"run_wall_s": record.wall_s}
    trained, exported = documents.get("train"), documents.get("export")
    if trained is not None or record.goodput is not None:
        figures = headline_of_record(record, money=find_money(record.config, record.goodput)[0])
        metrics |= train_metrics(trained if isinstance(trained, CheckpointManifest) else None, record.goodput, figures)
    if isinstance(exported, ExportManifest):
        metrics |= export_metrics(exported, verification)
    return finite(metrics)


def stage_metrics(
    document: Contract, view: RunView | None = None, goodput: GoodputRecord | None = None
) -> dict[str, float]:
    """Return the metrics of a finished stage.

    Args:
        document: Its manifest.
        view: The run; None: it cannot be read.
        goodput: Of a training; None if unknown.

    Raises:
        DataError: As `profile_metrics`.
    """
    if isinstance(document, ShardManifest):
        return shard_metrics(document)
    if isinstance(document, ProfileReport):
        return profile_metrics(document)
    if isinstance(document, ExportManifest):
        return export_metrics(document, view.verification if view is not None else None)
    assert isinstance(document, CheckpointManifest), document.kind
    return train_metrics(document, goodput, headline(view) if view is not None else None)


def output_hashes(document: Contract) -> dict[str, str]:
    """Return the hashes of a stage's outputs by name, for lineage: the next stage's `made_from` has one of them."""
    if isinstance(document, CheckpointManifest):
        return {"parameters_sha256": document.parameters_sha256}
    if isinstance(document, ExportManifest):
        return {
            "checkpoint_sha256": document.checkpoint_sha256,
            **{f"graph_{graph.precision}_sha256": graph.sha256 for graph in document.graphs},
            "served_sha256": document.served_file.sha256,
        }
    return {}


def stage_warnings(document: Contract) -> list[str]:
    """Return the warnings of a stage."""
    return document.warnings if isinstance(document, ShardManifest | ProfileReport) else []


def summarise(
    stage: str,
    uri: str,
    manifest_sha256: str,
    document: Contract,
    metrics: Mapping[str, float],
    warnings: Sequence[str],
) -> str:
    """Return the Markdown summary of a stage: warnings, metrics, folder, its hashes and those of its inputs.

    Args:
        stage: Its name.
        uri: Of its folder.
        manifest_sha256: Hash of its manifest's file.
        document: The manifest.
        metrics: By name.
        warnings: A line each.
    """
    hashes = {"manifest": f"sha256:{manifest_sha256}", "fingerprint": document.fingerprint, **output_hashes(document)}
    hashes |= {f"made from {name}": value for name, value in document.made_from.items()}
    lists: list[Sequence[Any]] = [warnings, list(metrics.items()), list(hashes.items())]
    shown = [rows[:MAX_ROWS] for rows in lists]
    omitted = sum(map(len, lists)) - sum(map(len, shown))
    return render_markdown(
        "summary.md.j2",
        stage=stage,
        uri=uri,
        warnings=shown[0],
        metrics=shown[1],
        hashes=shown[2],
        omitted=f"{omitted:,}" if omitted else "",
    )


def classification_metadata(report: EvaluationReport) -> dict[str, Any]:
    """Return confusionMatrix and confidenceMetrics of a system.ClassificationMetrics, and a `note` on omissions.

    The structure is that of kfp.dsl.ClassificationMetrics (`log_confusion_matrix`, `log_roc_curve`); the pipeline's
    images have no kfp.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    details = ClassificationDetails.of(report)
    if details is None:
        return {"note": f"The task {shorten(report.task, 200)} does not classify samples into one class."}
    matrix, note = _confusion_matrix(details)
    metadata: dict[str, Any] = {"confusionMatrix": matrix, "note": note}
    if details.roc is not None:
        negatives, positives = (max(1, outcome.samples) for outcome in details.classes)
        rates = [(threshold, low / negatives, high / positives) for threshold, low, high in details.roc.points]
        metadata["confidenceMetrics"] = [
            {"confidenceThreshold": threshold, "recall": recall, "falsePositiveRate": false_rate}
            for threshold, false_rate, recall in evenly([(1.0, 0.0, 0.0), *rates, (0.0, 1.0, 1.0)], MAX_POINTS)
        ]
    return metadata


def _confusion_matrix(report: ClassificationDetails) -> tuple[dict[str, Any], str]:
    """Return the confusion matrix, and a note on omissions.

    Beyond MAX_CATEGORIES classes, those with few mistakes are one category.
    """
    count = len(report.classes)
    shown = list(range(count))
    if count > MAX_CATEGORIES:
        wrong = [0] * count
        for label, guess, samples in report.confusion:
            if label != guess and label in range(count) and guess in range(count):
                wrong[label] += samples
                wrong[guess] += samples
        shown = sorted(sorted(shown, key=lambda place: (-wrong[place], place))[: MAX_CATEGORIES - 1])
    names = _distinct([report.classes[place].name for place in shown])
    place_of = {place: row for row, place in enumerate(shown)}
    rest_row = len(shown)
    if len(shown) < count:
        names = _distinct([*names, f"{count - len(shown):,} other classes"])
    rows = [[0] * len(names) for _ in names]
    for label, guess, samples in report.confusion:
        if label in range(count) and guess in range(count):
            rows[place_of.get(label, rest_row)][place_of.get(guess, rest_row)] += samples
    remarks = []
    if len(shown) < count:
        remarks.append(
            f"The confusion matrix has the {len(shown)} of {count:,} classes with most mistakes; the others are one "
            "category, whose diagonal holds mistakes among them too."
        )
    if report.confusion_left_out:
        remarks.append(f"{report.confusion_left_out:,} misclassified samples are in omitted cells, the smallest.")
    matrix = {"annotationSpecs": [{"displayName": name} for name in names], "rows": [{"row": row} for row in rows]}
    return matrix, " ".join(remarks)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return printable, unique names: kfp identifies categories by name."""
    distinct: list[str] = []
    for name in names:
        plain = shorten(" ".join(UNPRINTABLE.sub("\ufffd", name).split()), _NAME_LIMIT) or "(no name)"
        candidate, number = plain, 1
        while candidate in distinct:
            number += 1
            candidate = f"{plain} ({number})"
        distinct.append(candidate)
    return distinct
