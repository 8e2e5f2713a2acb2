"""Record of a run, run.json: states and results of its stages, from their documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    MANIFESTS,
    CheckpointManifest,
    Contract,
    EvaluationReport,
    ExportManifest,
    GoodputRecord,
    RunRecord,
    ShardManifest,
    Verification,
)
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.fingerprint import combine, fingerprint
from contracts.previous import RUN_NAME
from contracts.proof import read_verification, verdict
from contracts.result import run_uri
from inspection.headline import count_left_out, describe_baseline
from inspection.metrics import row_metrics
from inspection.stages import StageTrace


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
    """Return the record of a run that has ended.

    Args:
        run_id: Its id.
        started_at: UTC, ISO 8601.
        config: The resolved configuration.
        traces: Its stages.
        wall_s: Of the whole run.
        error: Reason of the failure; empty without one.
        interrupted: Whether a user's signal ended it, not a failure.
        goodput: Account of its training's time.
    """
    manifests = {trace.name: _manifest_sha256(trace) for trace in traces}
    stages = [trace.record(manifests[trace.name]) for trace in traces]
    made_from = {name: sha256 for name, sha256 in manifests.items() if sha256 is not None}
    made_from["config"] = fingerprint(config.model_dump(mode="json"))
    uris = {stage.name: stage.uri for stage in stages if stage.uri is not None}
    documents, unread = _load_results(uris)
    shards, trained, exported = map(documents.get, ("shard", "train", "export"))
    results: dict[str, Any] = {"unread": unread} if unread else {}
    verification = None
    if isinstance(shards, ShardManifest):
        results["data"] = {"samples": {name: split.samples for name, split in shards.splits.items()}}
    if isinstance(trained, CheckpointManifest):
        results |= _train_results(trained, uris["train"])
    if isinstance(exported, ExportManifest):
        verification = read_verification(uris["export"], exported)
        results["export"] = _export_results(exported, uris["export"], verification)
    record = RunRecord(
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
        results=results,
        goodput=goodput,
    )
    return record.model_copy(update={"row": row_metrics(record, documents, verification)})


def close_run(record: RunRecord, *, line: str) -> None:
    """Write a run's record into its folder, and a copy to the line's top.

    After attempts in several regions the record is that of the last.
    """
    for folder in (run_uri(line, record.id), line):
        storage.replace(storage.join(folder, RUN_NAME), record.to_json())


def _load_results(uris: Mapping[str, str]) -> tuple[dict[str, Contract], dict[str, str]]:
    """Return the documents of finished stages, and the errors of unreadable ones, which do not fail the run."""
    documents: dict[str, Contract] = {}
    unread: dict[str, str] = {}
    for stage in [stage for stage in ("shard", "train", "export") if stage in uris]:
        try:
            documents[stage] = MANIFESTS[stage].load(uris[stage])
        except DataError as error:
            unread[stage] = error.given
    return documents, unread


def _train_results(trained: CheckpointManifest, uri: str) -> dict[str, Any]:
    samples, left_out, baseline = None, 0, ""
    if trained.evaluation is not None:
        with suppress(DataError):
            report = EvaluationReport.load(trained.evaluation.uri(uri))
            samples, left_out, baseline = report.samples, count_left_out(report), describe_baseline(report)
    return {
        "metrics": trained.metrics,
        "headline": trained.headline.model_dump() if trained.headline is not None else None,
        "test_samples": samples,
        "classes_left_out": left_out,
        "baseline": baseline,
        "best_step": trained.best_step,
        "parameters_sha256": trained.parameters_sha256,
    }


def _export_results(exported: ExportManifest, uri: str, verification: Verification | None) -> dict[str, Any]:
    return {
        "uri": uri,
        "precision": exported.precision,
        "asked_precision": exported.asked_precision,
        "verdict": verdict(exported, verification),
        "runtime": exported.runtime,
        "served": exported.served_file.model_dump(mode="json"),
    }


def _manifest_sha256(trace: StageTrace) -> str | None:
    if not trace.finished or trace.uri is None:
        return None
    return hashlib.sha256(storage.read_bytes(storage.join(trace.uri, MANIFEST_NAME))).hexdigest()
