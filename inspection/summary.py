"""What a run came to: its record, read from the documents that its stages left."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    EvaluationReport,
    ExportManifest,
    GoodputRecord,
    ProfileReport,
    RunRecord,
    ShardManifest,
)
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.fingerprint import combine, fingerprint
from contracts.previous import RUN_NAME
from contracts.proof import read_verification, verdict
from contracts.result import run_uri
from inspection.report import to_markdown
from inspection.run.headline import count_left_out
from inspection.trace import StageTrace

REPORT_NAME = "report.md"


def make_record(
    *,
    run_id: str,
    started_at: str,
    config: RunConfig,
    traces: Sequence[StageTrace],
    wall_s: float,
    error: str,
    interrupted: bool = False,
    goodput: GoodputRecord | None = None,
) -> RunRecord:
    """Build the record of a run that ended.

    Args:
        run_id: Its id.
        started_at: When it started: UTC, ISO 8601.
        config: The resolved configuration.
        traces: What the events told about each stage.
        wall_s: Seconds that the whole command took.
        error: Why it failed; empty when it did not.
        interrupted: The error is a user's signal: it ended the run, and nothing failed.
        goodput: Where the time of its training went.
    """
    manifests = {trace.name: _manifest_sha256(trace) for trace in traces}
    stages = [trace.record(manifests[trace.name]) for trace in traces]
    made_from = {name: sha256 for name, sha256 in manifests.items() if sha256 is not None}
    made_from["config"] = fingerprint(config.model_dump(mode="json"))
    return RunRecord(
        fingerprint=combine(made_from),
        made_from=made_from,
        id=run_id,
        state="interrupted" if interrupted else "failed" if error else "succeeded",
        error=error,
        started_at=started_at,
        config=config.model_dump(mode="json"),
        stages=stages,
        wall_s=round(wall_s, 3),
        process_start_s=round(sum(stage.start_s for stage in stages), 3),
        results=collect_results(config, {stage.name: stage.uri for stage in stages if stage.uri is not None}),
        goodput=goodput,
    )


def collect_results(config: RunConfig, uris: Mapping[str, str]) -> dict[str, Any]:
    """Read what the stages found out from their documents.

    Args:
        config: The resolved configuration.
        uris: Folder of each finished stage.

    Returns:
        What each document says; `unread` has the reason for each stage whose document cannot be read, by its name.
    """
    readers: dict[str, Callable[[str], dict[str, Any]]] = {
        "shard": lambda uri: {"data": _data_results(ShardManifest.load(uri))},
        "profile": lambda uri: {"profile": _profile_results(ProfileReport.load(uri))},
        "train": lambda uri: _train_results(config, CheckpointManifest.load(uri), uri),
        "export": lambda uri: _export_results(uri, ExportManifest.load(uri)),
    }
    results: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for stage in filter(uris.__contains__, readers):
        try:
            results |= readers[stage](uris[stage])
        except DataError as error:
            # A run whose document was damaged since has ended all the same, and its record says so.
            unread[stage] = error.given
    return {**results, "unread": unread} if unread else results


def _data_results(shards: ShardManifest) -> dict[str, Any]:
    return {
        "classes": len(shards.classes),
        "samples": {name: split.samples for name, split in shards.splits.items()},
        "shards": len(shards.shards),
        "rejected": shards.count_rejected,
        **({"warnings": shards.warnings} if shards.warnings else {}),
    }


def _profile_results(report: ProfileReport) -> dict[str, Any]:
    return {
        **report.choice.model_dump(mode="json"),
        "measured": report.chosen_point().model_dump(mode="json"),
        "findings": [finding.model_dump(mode="json") for finding in report.findings],
    }


def _train_results(config: RunConfig, trained: CheckpointManifest, uri: str) -> dict[str, Any]:
    samples, left_out = None, 0
    if trained.evaluation is not None:
        with suppress(DataError):
            report = EvaluationReport.load(trained.evaluation.uri(uri))
            samples, left_out = report.samples, count_left_out(report)
    environment = trained.environment
    batch, slot_size = config.train.global_batch_size, trained.slot_size
    ranks = int(environment["ranks"])
    num_slots = math.ceil(batch / slot_size)
    return {
        "metrics": trained.metrics,
        "headline": trained.headline.model_dump() if trained.headline is not None else None,
        "test_samples": samples,
        **({"classes_left_out": left_out} if left_out else {}),
        "best_step": trained.best_step,
        "parameters_sha256": trained.parameters_sha256,
        "batch": {
            "global_batch_size": batch,
            "slot_size": slot_size,
            # The last slot, and the last rank's share, are smaller when the batch does not divide evenly.
            "slots_per_rank": math.ceil(num_slots / ranks),
            "ranks": ranks,
            "num_workers": int(environment["num_workers"]),
        },
    }


def _export_results(uri: str, exported: ExportManifest) -> dict[str, Any]:
    return {
        "export": {
            "uri": uri,
            "precision": exported.precision,
            "asked_precision": exported.asked_precision,
            "tried": [attempt.model_dump(mode="json") for attempt in exported.tried],
            "verdict": verdict(exported, read_verification(uri, exported)),
            "runtime": exported.runtime,
            "served": exported.served_file.model_dump(mode="json"),
            "latency": [entry.model_dump(mode="json") for entry in exported.latency],
        },
        "gates": [gate.model_dump(mode="json") for gate in exported.gates],
        "exported_metric": exported.headline.metric,
        "exported_values": exported.headline_values,
        "exported_test_samples": exported.proof_samples,
    }


def _manifest_sha256(trace: StageTrace) -> str | None:
    if not trace.finished or trace.uri is None:
        return None
    return hashlib.sha256(storage.read_bytes(storage.join(trace.uri, MANIFEST_NAME))).hexdigest()


def close_run(record: RunRecord, *, line: str) -> None:
    """Write a run's record and report, and copy them to the line's top."""
    folder = run_uri(line, record.id)
    for name, content in {REPORT_NAME: to_markdown(record).encode(), RUN_NAME: record.to_json()}.items():
        # A run that is tried in another region has the record of its last try.
        storage.replace(storage.join(folder, name), content)
        storage.replace(storage.join(line, name), content)
