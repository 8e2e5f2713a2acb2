"""The end of training: the best checkpoint measured on the test split, and the manifest at the top of the folder.

`calibrate` of the task runs on the validation split before. If the process is killed here, the next attempt repeats
everything with the same result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import (
    EVALUATION_NAME,
    MANIFEST_NAME,
    PREDICTIONS_NAME,
    CheckpointManifest,
    EvaluationReport,
    FileEntry,
)
from contracts.errors import DataError, TryAgain
from trainer.checkpoint.loading import open_groups
from trainer.checkpoint.manager import write_weights
from trainer.evaluate import Evaluation
from trainer.model.build import parameters_sha256
from trainer.parallel.process_group import on_first_rank
from trainer.predictions import OutcomeCollector, SplitOutcomes
from trainer.report.board import write_result
from trainer.tasks.loading import calling, task_error
from trainer.tasks.task import Baseline, Task

if TYPE_CHECKING:
    from trainer.train import Training


def finish(training: Training) -> None:
    """Evaluate the best undamaged checkpoint on the test split and publish the final manifest; collective.

    Raises:
        DataError: All checkpoints are damaged.
        Superseded: A later attempt has started.
        TryAgain: Another run finished the same training.
        Preempted: All ranks agreed to stop.
    """
    folder, stepper, sections = training.assignment.folder, training.stepper, training.ledger.sections
    sections.enter("restore")
    best = training.checkpoints.find_best("model", "ema")
    if best.manifest is None:
        raise DataError(
            f"no checkpoint is whole in {storage.display(folder)}" + "".join(f"; {reason}" for reason in best.skipped),
            allowed="the checkpoints as training left them",
            todo="train again with --fresh",
        )
    with open_groups(best.uri, best.manifest, "model", "ema", on_piece=sections.alive) as groups:
        stepper.load_evaluated(groups)
    sections.enter("evaluation")
    calibrated = _calibrate(training)
    collector = OutcomeCollector(training.data.task, training.config)
    test = training.evaluate_split("test", collector)
    _leave_if_agreed(training)
    outcomes = collector.gather(training.rank) if test is not None else None
    state = stepper.full_model_state()
    publish = partial(_publish, training, best.uri, best.manifest, state, test, outcomes, calibrated)
    on_first_rank(training.rank.rank, training.rank.ranks, publish, sections.alive)


def _publish(
    training: Training,
    uri: str,
    best: CheckpointManifest,
    state: dict[str, torch.Tensor],
    test: Evaluation | None,
    outcomes: SplitOutcomes | None,
    calibrated: dict[str, Any],
    alive: Callable[[], None],
) -> None:
    """Publish evaluation.json, test-predictions.parquet, averaged weights, and last the manifest; on rank 0."""
    folder, weights = training.assignment.folder, training.stepper.evaluated_weights
    metrics, document = dict(best.metrics), None
    contents: dict[str, bytes] = {}
    entries: dict[str, FileEntry] = {}
    sha256 = parameters_sha256(state)
    alive()
    if test is not None and outcomes is not None:
        training.reporting.warn_of_no_number("test", test)
        metrics |= {**test.named("test"), "test_samples": float(test.samples)}
        details, baseline = _report(training, test, outcomes)
        alive()
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
            baseline=baseline,
            details=details,
        )
        with calling(training.config, "outcomes", allowed="values of JSON"):
            predictions = outcomes.to_parquet(training.data.task.classes)
        contents = {EVALUATION_NAME: document.to_json(), PREDICTIONS_NAME: predictions}
        alive()
    # Another run of the same training writes the same names: never overwrite files of its manifest.
    training.checkpoints.require_newest()
    if storage.exists(storage.join(folder, MANIFEST_NAME)):
        raise _finished_elsewhere(folder)
    for name, content in contents.items():
        # Replaced, not created: a killed attempt may have written it.
        storage.replace(storage.join(uri, name), content)
        entries[name] = FileEntry.of(folder, f"{uri.removeprefix(folder + '/')}/{name}")
        alive()
    _show(training, best, document)
    alive()
    if weights == "ema":
        # Group `model` of the checkpoint has the parameters, not the average.
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
            "calibration": calibrated,
            "evaluation": entries.get(EVALUATION_NAME),
            "predictions": entries.get(PREDICTIONS_NAME),
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


def _calibrate(training: Training) -> dict[str, Any]:
    """Set and return the task's `calibration` on all ranks; empty without `calibrate` or validation samples."""
    task, rank, config = training.data.task, training.rank, training.config
    if type(task).calibrate is Task.calibrate:
        return {}
    validation = training.evaluate_split("validation")
    _leave_if_agreed(training)
    if validation is None:
        return {}
    results: list[dict[str, Any]] = [{}]
    if rank.is_first:
        with calling(config, "calibrate"):
            results = [_json_values(task.calibrate(validation.reduced))]
    if rank.ranks > 1:
        dist.broadcast_object_list(results, src=0)
    task.calibration = results[0]
    return results[0]


def _leave_if_agreed(training: Training) -> None:
    """Leave if the ranks agreed to stop during an evaluation."""
    if training.vote.agreed is not None:
        # The network has the best weights now; the last step is saved already.
        training.leave(training.vote.agreed, save=False)


def _report(training: Training, test: Evaluation, outcomes: SplitOutcomes) -> tuple[dict[str, Any], Baseline | None]:
    """Return `details` and `baseline` of evaluation.json."""
    task, config = training.data.task, training.config
    with calling(config, "report"):
        details = _json_values(task.report(outcomes.columns, test.reduced))
    with calling(config, "baseline"):
        baseline = task.baseline(outcomes.columns)
    if baseline is not None and not (isinstance(baseline, Baseline) and math.isfinite(baseline.value)):
        allowed = "a Baseline with a finite value, or None"
        raise task_error(config, "baseline", f"returned {baseline!r}", allowed=allowed)
    return details, baseline


def _json_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return values after a JSON round trip; raises TypeError or ValueError for values without a JSON form."""
    decoded: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return decoded


def _show(training: Training, best: CheckpointManifest, document: EvaluationReport | None) -> None:
    try:
        write_result(training.assignment.tensorboard_folder, training, best, document)
    except Exception as error:  # noqa: BLE001 - TensorBoard may raise anything
        # TensorBoard's files are optional.
        training.log(f"warning: the result is not in TensorBoard's files: {type(error).__name__}: {error}")
