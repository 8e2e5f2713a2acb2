"""The report on a stage: where its output is, its numbers as metrics, and a summary in Markdown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, ProfileReport, ShardManifest
from contracts.errors import DataError
from contracts.refusal import find_refusal
from contracts.result import StageResult, find_result, leave_result
from inspection.outputs import write_metadata, write_parameter
from inspection.profile import NOT_MEASURED, describe_findings, describe_flags


def run(options: argparse.Namespace) -> None:
    """Give out the stage's URI, its metrics and its summary.

    Raises:
        DataError: The stage has ended without an output, or a worker's refusal.
    """
    result = find_stage_result(options.line, options.run_id, options.stage, options.at)
    numbers = describe(options.stage, result.uri)
    hashes = {"uri": result.uri, "manifest_sha256": result.manifest_sha256, "reused": str(result.reused).lower()}
    write_parameter(options.write_uri, result.uri)
    write_parameter(options.write_summary, to_markdown(result, numbers))
    write_parameter(options.write_metrics, json.dumps(numbers, sort_keys=True))
    metrics = {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
    write_metadata(options.executor_input, {"metrics": {**metrics, **hashes}, "summary": hashes})


def find_stage_result(line: str, run_id: str, stage: str, at: str) -> StageResult:
    """Return what a stage has made for a run.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        stage: Its name.
        at: Where its output should be, if a service's job has made it and has told nobody; else empty.

    Raises:
        DataError: Nothing is there.
        ShardlineError: A worker has left why.
    """
    if (found := find_result(line, run_id, stage)) is not None:
        return found
    if at and storage.exists(storage.join(at, MANIFEST_NAME)):
        return leave_result(line, run_id, stage, at, reused=False)
    if at and (refusal := find_refusal(at)) is not None:
        raise refusal
    raise DataError(
        f"stage {stage} has left no output for run {run_id}",
        allowed="a stage that has ended well",
        todo=f"see why it ended: shardline status {run_id}",
    )


def describe(stage: str, uri: str) -> dict[str, Any]:
    """Return what a stage's document says in a few numbers and words.

    Raises:
        DataError: The document is damaged.
    """
    if stage == "shard":
        shards = ShardManifest.load(uri)
        return {
            "samples": sum(split.samples for split in shards.splits.values()),
            "shards": len(shards.shards),
            "bytes": sum(entry.bytes for entry in shards.shards),
            "classes": len(shards.classes),
            "rejected": len(shards.rejected),
            "generation": shards.generation,
        }
    if stage == "profile":
        return _describe_profile(ProfileReport.load(uri), uri)
    if stage == "train":
        trained = CheckpointManifest.load(uri)
        return {**trained.metrics, "step": trained.step, "parameters_sha256": trained.parameters_sha256}
    exported = ExportManifest.load(uri)
    return {
        **{f"accuracy_{name}": value for name, value in exported.accuracy.items()},
        "precision": exported.precision,
        "verdict": exported.verdict,
        "gates_passed": sum(gate.status == "passed" for gate in exported.gates),
        "gates": len(exported.gates),
    }


def _describe_profile(report: ProfileReport, uri: str) -> dict[str, Any]:
    choice, point = report.choice, report.chosen_point()
    measured = {"samples_per_s": point.samples_per_s, "data_time_fraction": point.data_time_fraction}
    told: dict[str, Any] = {
        "slot_size": choice.slot_size,
        "slots_per_rank": choice.slots_per_rank,
        "num_workers": choice.num_workers,
        "prefetch_factor": choice.prefetch_factor,
        "threads": choice.threads,
        "computes_in": describe_flags(choice.flags),
        "points": sum(entry.samples_per_s is not None for entry in report.points),
        "findings": len(report.findings),
        # What was not measured is no metric: 0 would be one.
        **{name: NOT_MEASURED if value is None else value for name, value in measured.items()},
        "reason": choice.reason,
    }
    for number, (name, text) in enumerate(describe_findings(report.findings, report.recommendations), 1):
        told[f"{name}_{number}" if name == "recommended" else name] = text
    if (page := report.page_uri(uri)) is not None:
        told["page"] = page
    return told


def to_markdown(result: StageResult, numbers: Mapping[str, Any]) -> str:
    """Return the summary that the console shows."""
    rows = [("output", f"`{result.uri}`"), ("manifest", f"`sha256:{result.manifest_sha256}`")]
    rows += [
        (name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|"))
        for name, value in numbers.items()
    ]
    reused = " (reused)" if result.reused else ""
    lines = [f"# {result.stage}{reused}", "", "| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)]) + "\n"
