"""The end of training: the best checkpoint measured on the test split, and the manifest at the top of the folder.

A task that chooses something on the validation split (`calibration`) does so before. Nothing is kept of an end that was
killed: the next attempt does all of it again, with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, CheckpointManifest, EvaluationReport, FileEntry
from contracts.errors import DataError, TryAgain
from trainer.checkpoint.loading import open_groups
from trainer.checkpoint.manager import write_weights
from trainer.evaluate import Evaluation
from trainer.model.build import parameters_sha256
from trainer.parallel.process_group import on_first_rank
from trainer.report.board import write_result
from trainer.tasks.load import calling
from trainer.tasks.optional import SplitReport, make_calibration, make_report

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from trainer.train import Training


def finish(training: Training) -> None:
    """Measure the best checkpoint on the test split and publish the final manifest; all ranks together.

    Where the best checkpoint is damaged it is the best of those that are not.

    Raises:
        DataError: None is whole.
        Superseded: A later attempt has begun.
        TryAgain: Another run has finished the same training.
        Preempted: All ranks agreed to stop meanwhile.
    """
    folder, stepper, sections = training.assignment.folder, training.stepper, training.ledger.sections
    sections.enter("restore")
    found = training.checkpoints.find_best("model", "ema")
    if found.manifest is None:
        raise DataError(
            f"no checkpoint is whole in {storage.display(folder)}" + "".join(f"; {why}" for why in found.skipped),
            allowed="the checkpoints as training left them",
            todo="train again with --fresh",
        )
    with open_groups(found.uri, found.manifest, "model", "ema", on_piece=sections.alive) as groups:
        stepper.load_evaluated(groups)
    sections.enter("evaluation")
    calibrated = _calibrate(training)
    with calling(training.config, "report"):
        report = make_report(training.data.task, training.rank.device, calibrated)
    test = training.evaluate_split("test", report)
    _leave_if_told(training)
    if report is not None:
        with calling(training.config, "report"):
            report.merge()
    state = stepper.full_model_state()
    publish = partial(_publish, training, found.uri, found.manifest, state, test, report, calibrated)
    # The others wait for as long as the first one gets on.
    on_first_rank(training.rank.rank, training.rank.ranks, publish, sections.alive)


def _publish(
    training: Training,
    uri: str,
    best: CheckpointManifest,
    state: dict[str, torch.Tensor],
    test: Evaluation | None,
    report: SplitReport | None,
    calibrated: dict[str, Any] | None,
    alive: Callable[[], None],
) -> None:
    """Publish evaluation.json, weights that are in no file yet, and last the manifest; on the first rank."""
    folder, weights = training.assignment.folder, training.stepper.evaluated_weights
    # Another run of the same training writes the same names; nothing is written over what its manifest describes.
    training.checkpoints.require_newest()
    if storage.exists(storage.join(folder, MANIFEST_NAME)):
        raise _finished_elsewhere(folder)
    metrics, evaluation, document = dict(best.metrics), None, None
    sha256 = parameters_sha256(state)
    alive()
    if test is not None:
        training.reporting.warn_of_no_number("test", test)
        metrics |= {**test.named("test"), "test_samples": float(test.samples)}
        document = EvaluationReport(
            fingerprint=best.fingerprint,
            made_from=best.made_from,
            step=best.step,
            weights=weights,
            parameters_sha256=sha256,
            shards_fingerprint=best.shards_fingerprint,
            samples=test.samples,
            task=training.config.task.name,
            headline=test.headline,
            metrics=test.metrics,
            loss=test.loss,
            details=_details(training, report),
        )
        # Replaced, not created: an attempt that was killed right after this does it again.
        storage.replace(storage.join(uri, EVALUATION_NAME), document.to_json())
        evaluation = FileEntry.of(folder, f"{uri.removeprefix(folder + '/')}/{EVALUATION_NAME}")
        alive()
    _show(training, best, document, report)
    alive()
    if weights == "ema":
        # The average is in no file yet that a reader of weights knows.
        files = [write_weights(folder, state)]
        alive()
    else:
        name = uri.removeprefix(folder + "/")
        files = [file.model_copy(update={"name": f"{name}/{file.name}"}) for file in best.files_of("model")]
    manifest = best.model_copy(
        update={
            "finished": True,
            "metrics": metrics,
            "ended_by": training.ended_by,
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "spent_s": training.reporting.budget.spent_s(),
            "parameters_sha256": sha256,
            "calibration": calibrated or {},
            "warnings": training.data.warnings,
            "evaluation": evaluation,
            "files": files,
        }
    )
    training.checkpoints.require_newest()
    try:
        storage.publish(storage.join(folder, MANIFEST_NAME), manifest.to_json())
    except storage.AlreadyPublished:
        raise _finished_elsewhere(folder) from None


def _finished_elsewhere(folder: str) -> TryAgain:
    return TryAgain(
        f"another run has finished this training in {storage.display(folder)} meanwhile\n"
        "  to do: run the same command again, which finds its weights"
    )


def _calibrate(training: Training) -> dict[str, Any] | None:
    """Return what the task chooses on the validation split, the same on all ranks; None: it chooses nothing."""
    rank, config = training.rank, training.config
    with calling(config, "calibration"):
        calibration = make_calibration(training.data.task, rank.device)
    if calibration is None:
        return None
    training.evaluate_split("validation", calibration)
    _leave_if_told(training)
    with calling(config, "calibration"):
        calibration.merge()
        chosen = [calibration.document() if rank.is_first else {}]
    if rank.ranks > 1:
        dist.broadcast_object_list(chosen, src=0)
    return chosen[0]


def _leave_if_told(training: Training) -> None:
    """Stop if the ranks agreed to during an evaluation.

    Raises:
        Preempted: They did.
    """
    if training.vote.agreed is not None:
        # The network holds the best weights now, and the last step is saved.
        training.leave(training.vote.agreed, save=False)


def _details(training: Training, report: SplitReport | None) -> dict[str, Any]:
    if report is None:
        return {}
    with calling(training.config, "report"):
        places = report.places()
    origins = training.data.origins("test", places)
    with calling(training.config, "report"):
        return report.details(origins)


def _show(
    training: Training, best: CheckpointManifest, document: EvaluationReport | None, report: SplitReport | None
) -> None:
    def show(writer: SummaryWriter) -> None:
        if report is not None and document is not None:
            report.show(writer, document, best.step)

    try:
        write_result(training.assignment.tensorboard_folder, training, best, document, show)
    except Exception as error:  # noqa: BLE001 - drawing and TensorBoard raise what they like
        # It is only looked at: the weights are there, and the document about them is to come.
        training.log(f"warning: the result is not in TensorBoard's files: {type(error).__name__}: {error}")
