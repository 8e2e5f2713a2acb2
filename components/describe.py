"""Output artifacts of a stage's task, for the pages of Vertex AI and Kubeflow, and for lineage.

    output artifact   the stage's folder; samples, classes, accuracy, verdict and hashes
    metrics           numbers, with the same names in all runs
    summary           Markdown: numbers, hashes and warnings
    page              HTML, one self-contained document
    classes           of training: confusion matrix and ROC curve

The metadata link the served file to the listing of the raw files: `made_from_NAME` of a stage is the `fingerprint`, or
another hash, of the stage before.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

from components.task import OUTPUTS, Task, Unreadable, attempt
from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    MANIFESTS,
    CheckpointManifest,
    Contract,
    EvaluationReport,
    GoodputRecord,
)
from contracts.config import RunConfig
from inspection.find import RunPlace
from inspection.metrics import classification_metadata, output_hashes, stage_metrics, stage_warnings, summarise
from inspection.pages.rendering import cell, plain_page
from inspection.read import read_run
from inspection.training import read_goodput

_Result = TypeVar("_Result")


def describe(task: Task, config: RunConfig, stage: str, uri: str) -> None:
    """Set the output artifacts of a task from the stage's folder.

    Files that are only shown may be missing or damaged: the artifact then has the reason, and the task succeeds.

    Args:
        task: The task of the pipeline.
        config: The keys of the configuration that the stage reads.
        stage: Name of the stage.
        uri: URI of the folder.
    """
    from inspection.report.page import render_stage

    line = storage.join(storage.normalise(config.run.root), config.run.name)
    document = MANIFESTS[stage].load(uri)
    # Only this page shows images, and each image is a request.
    place, pictures = RunPlace(line, task.run_id), stage == "train"
    view = attempt("the run", lambda: read_run(place, pictures=pictures))
    goodput = None
    if isinstance(document, CheckpointManifest):
        goodput = attempt("the account of the training's time", lambda: _read_account(place))
    measured = attempt("the metrics", lambda: stage_metrics(document, _readable(view), _readable(goodput)))
    metrics = _readable(measured) or {}
    warnings = [str(part) for part in (measured, goodput) if isinstance(part, Unreadable)] + stage_warnings(document)
    sha256 = hashlib.sha256(storage.read_bytes(storage.join(uri, MANIFEST_NAME))).hexdigest()
    own_hashes = output_hashes(document)
    hashes = {
        "stage": stage,
        "uri": uri,
        "contract_uri": storage.join(uri, MANIFEST_NAME),
        "manifest_sha256": sha256,
        "fingerprint": document.fingerprint,
        **{f"made_from_{name}": value for name, value in document.made_from.items()},
        **own_hashes,
    }
    page = view if isinstance(view, Unreadable) else attempt("the page", lambda: render_stage(view, stage))
    page = plain_page(f"Stage {stage}", page) if isinstance(page, Unreadable) else page
    # Hashes first: metrics may be omitted for size, the lineage must not.
    task.set_artifact(OUTPUTS[stage], {**hashes, **metrics}, uri=uri)
    task.set_artifact("metrics", metrics)
    summary = attempt("the summary", lambda: summarise(stage, uri, sha256, document, metrics, warnings))
    text = cell(summary) if isinstance(summary, Unreadable) else summary
    task.set_artifact("summary", {"display_name": f"{stage}: summary", **hashes}, content=f"{text}\n")
    task.set_artifact("page", {"display_name": f"{stage}: page", **hashes}, content=page, suffix=".html")
    if task.has_output("classes"):
        found = attempt("the evaluation", lambda: classification_metadata(_read_evaluation(document, uri)))
        shown = {"note": str(found)} if isinstance(found, Unreadable) else found
        task.set_artifact("classes", {"display_name": f"{stage}: classes", **hashes, **shown})


def _readable(result: _Result | Unreadable) -> _Result | None:
    return None if isinstance(result, Unreadable) else result


def _read_evaluation(document: Contract, uri: str) -> EvaluationReport:
    if not isinstance(document, CheckpointManifest) or document.evaluation is None:
        raise LookupError("the training has evaluated no test split")
    return EvaluationReport.load(document.evaluation.uri(uri))


def _read_account(place: RunPlace) -> GoodputRecord:
    record = read_goodput(place.line, place.run_id)
    if record is None:
        raise LookupError("no attempt of this run has recorded its time")
    return record
