"""The end of training: the best checkpoint measured on the test split, and the document at the top of the folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, CheckpointManifest, EvaluationReport, FileEntry
from contracts.errors import DataError
from trainer.checkpoint.commit import write_weights
from trainer.checkpoint.loading import load_parts
from trainer.evaluate import make_report
from trainer.model.build import parameters_sha256
from trainer.report.outcomes import Outcomes
from trainer.report.result import WORST_IMAGES, TestResult, write_result
from trainer.tasks.protocol import Mode

if TYPE_CHECKING:
    from trainer.train import Training


def finish(training: Training) -> None:
    """Measure the best checkpoint on the test split and publish the document that ends training; all ranks together.

    Where the best checkpoint is damaged it is the best of those that are not.

    Raises:
        DataError: None is whole.
        Preempted: All ranks agreed to stop meanwhile.
    """
    folder, stepper, sections = training.assignment.folder, training.stepper, training.ledger.sections
    sections.enter("restore")
    found = training.checkpoints.find_best("model", "ema")
    best = found.manifest
    if best is None:
        raise DataError(
            f"no checkpoint is whole in {storage.display(folder)}" + "".join(f"; {why}" for why in found.skipped),
            allowed="the checkpoints as training left them",
            todo="train again with --fresh",
        )
    rows = stepper.wanted_rows
    stepper.load_evaluated(load_parts(found.uri, best, rows, "model", "ema", on_piece=sections.alive))
    sections.enter("evaluation")
    outcomes = Outcomes(len(best.classes), training.rank.device)
    test = training.evaluate_split("test", outcomes)
    if training.vote.agreed is not None:
        # The network holds the best weights now, and the last step is saved.
        training.leave(training.vote.agreed, save=False)
    outcomes.merge()
    state = stepper.full_model_state()
    if not training.rank.is_first:
        return
    metrics, evaluation, report = dict(best.metrics), None, None
    sha256 = parameters_sha256(state)
    if test is not None:
        training.reporting.require_finite("test loss", test.loss, training.step)
        metrics |= {"test_accuracy": test.accuracy, "test_loss": test.loss, "test_samples": float(test.samples)}
        origins = training.data.origins("test", [said.place for said in outcomes.worst()])
        weights = stepper.evaluated_weights
        report = make_report(best, test, outcomes, origins, weights=weights, parameters_sha256=sha256)
        evaluation = _publish_evaluation(folder, found.uri, report)
    _show(training, best, report, outcomes)
    files = _files_below(folder, found.uri, best)
    if stepper.evaluated_weights == "ema":
        # Averages are in no file yet that a reader of weights knows.
        files = [write_weights(folder, state)]
    document = best.model_copy(
        update={
            "finished": True,
            "metrics": metrics,
            "ended_by": training.ended_by,
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "spent_s": training.reporting.budget.spent_s(),
            "parameters_sha256": sha256,
            "evaluation": evaluation,
            "files": files,
        }
    )
    storage.publish(storage.join(folder, MANIFEST_NAME), document.to_json())


def _show(training: Training, best: CheckpointManifest, report: EvaluationReport | None, outcomes: Outcomes) -> None:
    test = None
    try:
        if report is not None:
            shown = training.data.samples_at("test", [one.place for one in report.worst[:WORST_IMAGES]])
            mode = Mode(training=False)
            pictures = [training.data.task.prepare(sample, mode)["images"] for sample in shown]
            test = TestResult(report, outcomes.counts(), pictures)
        write_result(training.assignment.tensorboard_folder, training, best, test)
    except Exception as error:  # noqa: BLE001 - drawing and TensorBoard raise what they like
        # It is only looked at: the weights are there, and the document about them is to come.
        training.log(f"warning: the result is not in TensorBoard's files: {type(error).__name__}: {error}")


def _publish_evaluation(folder: str, uri: str, report: EvaluationReport) -> FileEntry:
    # Replaced, not created: an attempt that was killed right after this does it again.
    storage.replace(storage.join(uri, EVALUATION_NAME), report.to_json())
    return FileEntry.of(folder, f"{uri.removeprefix(folder + '/')}/{EVALUATION_NAME}")


def _files_below(folder: str, uri: str, checkpoint: CheckpointManifest) -> list[FileEntry]:
    """Return a checkpoint's files of the model, named from the training folder."""
    name = uri.removeprefix(folder + "/")
    return [
        FileEntry(name=f"{name}/{file.name}", bytes=file.bytes, crc32c=file.crc32c)
        for file in checkpoint.files_of("model")
    ]
