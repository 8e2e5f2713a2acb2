"""Metrics, hashes and summary of a finished stage, as Vertex AI and Kubeflow show them.

A metric's name begins with its stage and stays as it is: runs are compared by it, as artifacts and in experiments. A
value that was not measured is no metric, since 0 would be one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import (
    CheckpointManifest,
    Contract,
    ExportManifest,
    GoodputRecord,
    ProfileReport,
    ShardManifest,
    Verification,
)
from contracts.artifacts.export import PARITY
from contracts.proof import proven_on
from inspection.run.door import finite
from inspection.run.headline import RunHeadline, headline
from inspection.run.view import RunView
from pages.rendering import View

# Rows of each list of a summary. With the limits of pages/markdown.py a summary is below 1 MB, the most that consoles
# are known to load.
MAX_ROWS = 40
# Fields of the goodput record.
_GOODPUT = (
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
# Names of a training's metrics that its task's metrics may not have.
_RESERVED = {*_GOODPUT, "steps", "best_step", "epochs", "skipped_steps", "spent_s", "cost_usd"}


@dataclass(frozen=True)
class StageSummary(View):
    """Markdown summary of a stage: its metrics, its folder and hashes, and the hashes of its inputs."""

    template: ClassVar[str] = "stage/summary.md.j2"
    stage: str
    uri: str
    """Of the folder."""
    manifest_sha256: str
    document: Contract
    """The manifest."""
    metrics: Mapping[str, float]
    hashes: Mapping[str, str]
    """Of the outputs, by name."""
    warnings: Sequence[str]
    max_rows: int = MAX_ROWS


def known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that have a finite value."""
    return {name: value for name, value in metrics.items() if value is not None and finite(value) is not None}


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
    return known(metrics)


def profile_metrics(report: ProfileReport) -> dict[str, float]:
    """Return the metrics of a profile report; none where profiling is off.

    Raises:
        DataError: The choice is said to be measured, and is none of its points.
    """
    if report.method == "off":
        return {}
    choice, point, estimate = report.choice, report.chosen_point(), report.estimate
    return known(
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
    trained: CheckpointManifest | None, goodput: GoodputRecord | None, found: RunHeadline | None
) -> dict[str, float]:
    """Return the metrics of a training, as far as they are known; one that has not finished has a cost too.

    A metric of the task with the name of one of these is `train_metric_NAME`. Of a training that an earlier run did,
    time, preemptions and cost are `train_reused_NAME`, so that no sum counts them twice.

    Args:
        trained: Its manifest; None: it has not finished.
        goodput: None: not known.
        found: Headline of the run; None: the run cannot be read.
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
        prefix = "train_reused_" if found is not None and found.training_reused else "train_"
        metrics |= {f"{prefix}{name}": getattr(goodput, name) for name in _GOODPUT}
    if found is not None:
        metrics |= found.numbers()
    return known(metrics)


def export_metrics(exported: ExportManifest, verification: Verification | None = None) -> dict[str, float]:
    """Return the metrics of an export.

    Args:
        exported: Its manifest.
        verification: Of its engine, on a GPU since it was made.
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
        # Of the served file, where it ran.
        if isinstance(error := gate.figures.get("relative_error"), float):
            metrics["export_relative_error"] = error
    return known(metrics)


def stage_metrics(
    document: Contract, view: RunView | None = None, goodput: GoodputRecord | None = None
) -> dict[str, float]:
    """Return the metrics of a finished stage.

    Args:
        document: Its manifest.
        view: The run; None: it cannot be read.
        goodput: Of a training; None: not known.

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
