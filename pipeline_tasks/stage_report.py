"""The report on a stage: where its output is, its numbers, and what Vertex AI's and Kubeflow's pages show of it.

    metrics          numbers alone, with names that compare across runs
    summary          Markdown
    page             HTML, one self-contained document
    classification   of training: confusion matrix and ROC curve

Hashes and URIs are in the metadata of the last three: by them alone an engine can be followed to the listing of the raw
files (`made_from_NAME` of a stage is a `fingerprint`, or another hash, of the one before).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    MANIFESTS,
    CheckpointManifest,
    Contract,
    EvaluationReport,
    ExportManifest,
    GoodputRecord,
    ProfileReport,
    ShardManifest,
)
from contracts.errors import DataError
from contracts.refusal import find_refusal
from contracts.result import StageResult, find_result, leave_result
from inspection.goodput import read_goodput
from inspection.run.door import first_line
from inspection.run.headline import headline
from inspection.stages import export, profile, shard, train
from inspection.stages.told import Told, cut
from inspection.tasks import find_pages
from pages.markdown import Markdown, cell
from pages.markup import shorten
from pages.rendering import write
from pages.stage import first
from pages.stage.page import StageSummary, plain_page
from pipeline_tasks.outputs import bound_metadata, write_metadata, write_parameter
from records.compare import compare_with_previous

if TYPE_CHECKING:
    from inspection.run.view import RunView

# What the pages of both consoles are known to load; a larger one may stay empty.
MAX_PAGE_BYTES = 1_000_000
# Why something cannot be shown, which may quote what was read.
_MAX_SAID = 500
_Found = TypeVar("_Found")


def run(options: argparse.Namespace) -> None:
    """Give out the stage's URI and its artifacts.

    What the artifacts show beside the stage's document may be missing or damaged: then they say so, and the stage is
    none the worse.

    Raises:
        DataError: The stage has ended without an output, or a worker's refusal.
    """
    result = find_stage_result(options.line, options.run_id, options.stage, options.at)
    document = MANIFESTS[options.stage].load(result.uri)
    evaluation: EvaluationReport | str = "not of this stage"
    if isinstance(document, CheckpointManifest):
        evaluation = _look("the evaluation", lambda: _read_evaluation(document, result.uri))
    view = _look("the run", lambda: _read_view(options))
    found = _look("the stage", lambda: _tell(document, evaluation, view, options))
    told = _untold(found) if isinstance(found, Said) else found
    hashes = describe_hashes(result, document, told)
    _, left_out = bound_metadata(told.numbers)
    page, page_said = make_page(view, options.stage)
    write_parameter(options.write_uri, result.uri)
    write_parameter(options.write_metrics, json.dumps(told.numbers, sort_keys=True))
    write_parameter(options.write_summary, to_markdown(result, document, told, left_out))
    write_parameter(options.write_page, page)
    metadata: dict[str, dict[str, Any]] = {
        "metrics": dict(told.numbers),
        "summary": {"display_name": f"{options.stage}: summary", **hashes},
        "page": {"display_name": f"{options.stage}: page", **hashes, **page_said},
    }
    if options.write_classification is not None:
        classes = _classify(evaluation)
        write_parameter(options.write_classification, json.dumps(classes))
        metadata["classification"] = {"display_name": f"{options.stage}: classification", **hashes, **classes}
    write_metadata(options.executor_input, metadata)
    if isinstance(document, ShardManifest):
        for words in compare_with_previous(options.line, options.run_id, document):
            print(f"report: warning: {words}", file=sys.stderr)


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


def describe_hashes(result: StageResult, document: Contract, told: Told) -> dict[str, str]:
    """Return what the metadata of a stage's artifacts says, as text: where it is, what it is, what it was made from."""
    return {
        "stage": result.stage,
        "uri": result.uri,
        "contract_uri": storage.join(result.uri, MANIFEST_NAME),
        "manifest_sha256": result.manifest_sha256,
        "fingerprint": document.fingerprint,
        "reused": str(result.reused).lower(),
        **{f"made_from_{name}": value for name, value in document.made_from.items()},
        **told.hashes,
    }


def to_markdown(result: StageResult, document: Contract, told: Told, left_out: int = 0) -> str:
    """Return the summary that the console shows: whole where it is below MAX_PAGE_BYTES, else it says where it is cut.

    Args:
        result: The stage's.
        document: Its manifest.
        told: What is said of it.
        left_out: How many of its metrics are in the file of the metrics alone.
    """
    found = _look("the summary", lambda: told.lines)
    lines = [cell(found)] if isinstance(found, Said) else found

    def whole(body: Sequence[str]) -> str:
        summary = StageSummary(
            result.stage,
            result.reused,
            Markdown("\n".join(body)),
            result.uri,
            f"sha256:{result.manifest_sha256}",
            document.fingerprint,
            first([(name.replace("_", " "), value) for name, value in told.hashes.items()]),
            first(list(document.made_from.items())),
            left_out,
        )
        return write(summary) + "\n"

    return whole(cut(lines, MAX_PAGE_BYTES - len(whole(()).encode())))


def make_page(view: RunView | Said, stage: str) -> tuple[str, dict[str, str]]:
    """Return the stage's page, and what its metadata says of it: a page that cannot be made says why."""

    def render() -> str:
        from inspection.page import render_stage

        if isinstance(view, Said):
            raise LookupError(view)
        found = render_stage(view, stage)
        if (count := len(found.encode())) > MAX_PAGE_BYTES:
            raise ValueError(f"it has {count:,} bytes, and {MAX_PAGE_BYTES:,} are shown: see the run's own page")
        return found

    found = _look("the page", render)
    return (plain_page(f"Stage {stage}", found), {"said": found}) if isinstance(found, Said) else (found, {})


class Said(str):
    """Why something is not there, for readers."""

    __slots__ = ()


def _look(what: str, look: Callable[[], _Found]) -> _Found | Said:
    """Return what a reader of a run finds, or why it finds nothing.

    A run's files may be of another version, damaged or hostile; nothing that is only shown may fail a stage that has
    ended well.
    """
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - what is shown beside the stage's result must never fail it
        said = Said(f"{what} cannot be shown: {shorten(first_line(error), _MAX_SAID)}")
        print(f"report: {said}", file=sys.stderr)
        return said


def _tell(
    document: Contract, evaluation: EvaluationReport | str, view: RunView | Said, options: argparse.Namespace
) -> Told:
    if isinstance(document, ShardManifest):
        return shard.tell(document)
    if isinstance(document, ProfileReport):
        return profile.tell(document)
    if isinstance(document, ExportManifest):
        return export.tell(document, () if isinstance(view, Said) else view.verifications)
    assert isinstance(document, CheckpointManifest), document.kind
    goodput = _look("where the time went", lambda: _read_account(options.line, options.run_id))
    money, found = (None, None) if isinstance(view, Said) else (view.money, headline(view))
    return train.tell(document, train.Beside(evaluation, goodput, money, found))


def _untold(said: Said) -> Told:
    return Told({}, lambda: cell(said))


def _read_view(options: argparse.Namespace) -> RunView:
    from inspection.run.find import RunPlace
    from inspection.run.read import read_run

    # The other two pages show none, and each image is a request.
    return read_run(RunPlace(options.line, options.run_id), pictures=options.stage in ("shard", "train"))


def _read_evaluation(document: CheckpointManifest, uri: str) -> EvaluationReport:
    if document.evaluation is None:
        raise LookupError("the training has evaluated no test split")
    return EvaluationReport.load(document.evaluation.uri(uri))


def _read_account(line: str, run_id: str) -> GoodputRecord:
    if (found := read_goodput(line, run_id)) is None:
        raise LookupError("no attempt of this run has told of its time")
    return found


def _classify(evaluation: EvaluationReport | str) -> dict[str, Any]:
    if isinstance(evaluation, str):
        return {"note": str(evaluation)}
    pages = find_pages(evaluation.task)
    if pages is None or (classify := pages.classification) is None:
        return {"note": f"The task {shorten(evaluation.task, 200)} is no classification into one class each."}
    found = _look("the classification", lambda: classify(evaluation))
    return {"note": str(found)} if isinstance(found, Said) else found
