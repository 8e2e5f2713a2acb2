"""What a finished stage's task leaves for the pages of Vertex AI and Kubeflow, and for lineage.

    its own artifact   the stage's folder; samples, classes, accuracy, verdict and hashes
    metrics            numbers alone, with names that compare across runs
    summary            Markdown: numbers, hashes and warnings
    page               HTML, one self-contained document
    classes            of training: confusion matrix and ROC curve

By the metadata alone the served file can be followed to the listing of the raw files (`made_from_NAME` of a stage is a
`fingerprint`, or another hash, of the one before).
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

from components.task import Task, Unreadable, attempt
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
from inspection.goodput import read_goodput
from inspection.metrics import StageSummary, output_hashes, stage_metrics, stage_warnings
from inspection.run.find import RunPlace
from inspection.run.read import read_run
from inspection.run.view import RunView
from inspection.tasks import find_pages
from pages.document import plain_page
from pages.markdown import cell
from pages.markup import shorten
from pages.rendering import write

# What the pages of both consoles are known to load; a larger one may stay empty.
MAX_PAGE_BYTES = 1_000_000
_Found = TypeVar("_Found")


def describe(task: Task, config: RunConfig, stage: str, output: str, uri: str) -> None:
    """Give a task's artifacts what is known of the stage's folder.

    What is shown beside the stage's document may be missing or damaged: then it says so, and the stage is none the
    worse.

    Args:
        task: Of the pipeline.
        config: The stage's keys.
        stage: Its name.
        output: Name of the artifact that stands for the folder.
        uri: The folder.
    """
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    document = MANIFESTS[stage].load(uri)
    # The other two pages show none, and each image is a request.
    place, pictures = RunPlace(line, task.run_id), stage in ("shard", "train")
    view = attempt("the run", lambda: read_run(place, pictures=pictures))
    goodput = None
    if isinstance(document, CheckpointManifest):
        goodput = attempt("where the time went", lambda: _read_account(place))
    measured = attempt("the metrics", lambda: stage_metrics(document, _known(view), _known(goodput)))
    metrics = _known(measured) or {}
    warnings = [str(each) for each in (measured, goodput) if isinstance(each, Unreadable)] + stage_warnings(document)
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
    page, page_said = make_page(view, stage)
    # The hashes first: whatever is left out of too many numbers, the way back stays.
    task.set_artifact(output, {**hashes, **metrics}, uri=uri)
    task.set_artifact("metrics", metrics)
    summary = make_summary(StageSummary(stage, uri, f"sha256:{sha256}", document, metrics, own_hashes, warnings))
    task.set_artifact("summary", {"display_name": f"{stage}: summary", **hashes}, content=summary)
    task.set_artifact("page", {"display_name": f"{stage}: page", **hashes, **page_said}, content=page)
    if task.has_output("classes"):
        evaluation = attempt("the evaluation", lambda: _read_evaluation(document, uri))
        task.set_artifact("classes", {"display_name": f"{stage}: classes", **hashes, **describe_classes(evaluation)})


def make_summary(summary: StageSummary) -> str:
    """Return a stage's summary; one that cannot be written says why."""
    written = attempt("the summary", lambda: write(summary))
    return f"{cell(written) if isinstance(written, Unreadable) else written}\n"


def describe_classes(evaluation: EvaluationReport | Unreadable) -> dict[str, Any]:
    """Return the metadata of an evaluation's confusion matrix and ROC curve, or a note why there are none."""
    if isinstance(evaluation, Unreadable):
        return {"note": str(evaluation)}
    pages = find_pages(evaluation.task)
    if pages is None or (classify := pages.classification) is None:
        return {"note": f"The task {shorten(evaluation.task, 200)} is no classification into one class each."}
    found = attempt("the classification", lambda: classify(evaluation))
    return {"note": str(found)} if isinstance(found, Unreadable) else found


def make_page(view: RunView | Unreadable, stage: str) -> tuple[str, dict[str, str]]:
    """Return the stage's page, and what its metadata says of it: a page that cannot be made says why."""

    def render() -> str:
        from inspection.page import render_stage

        if isinstance(view, Unreadable):
            raise LookupError(view)
        found = render_stage(view, stage)
        if (count := len(found.encode())) > MAX_PAGE_BYTES:
            raise ValueError(f"it has {count:,} bytes, and {MAX_PAGE_BYTES:,} are shown: see the run's own page")
        return found

    found = attempt("the page", render)
    return (plain_page(f"Stage {stage}", found), {"said": found}) if isinstance(found, Unreadable) else (found, {})


def _known(found: _Found | Unreadable) -> _Found | None:
    return None if isinstance(found, Unreadable) else found


def _read_evaluation(document: Contract, uri: str) -> EvaluationReport:
    if not isinstance(document, CheckpointManifest) or document.evaluation is None:
        raise LookupError("the training has evaluated no test split")
    return EvaluationReport.load(document.evaluation.uri(uri))


def _read_account(place: RunPlace) -> GoodputRecord:
    if (found := read_goodput(place.line, place.run_id)) is None:
        raise LookupError("no attempt of this run has told of its time")
    return found
