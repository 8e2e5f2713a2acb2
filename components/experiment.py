"""A run of Vertex AI as a row of an experiment: what it was asked for, and what it came to.

Vertex AI compares the runs of an experiment (console: Experiments; `aiplatform.get_experiment_df`). The row is a
system.ExperimentRun, by Google's SDK; the PipelineJob is its child, not a row beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from components.task import bound_metadata
from contracts.artifacts import CheckpointManifest, RunRecord
from contracts.config import RunConfig
from contracts.errors import DataError
from inspection.metrics import export_metrics, known, profile_metrics, train_metrics
from inspection.run.headline import find_verdict, headline
from inspection.tasks import find_pages

if TYPE_CHECKING:
    from inspection.run.view import RunView

# The SDK's limit for the experiment's name, a hyphen and the run's (ExperimentRun._validate_run_id).
MAX_LENGTH = 121
Value = float | int | str
CLASSIFICATION_NAME = "test split"


def log_run(record: RunRecord, config: RunConfig, view: RunView, job_name: str) -> str:
    """Write a run into its experiment, once more if it is there already; return the row's name.

    Args:
        record: What the run came to.
        config: Its whole configuration; vertex.experiment is set.
        view: All that is known of it.
        job_name: Resource name of its PipelineJob.

    Raises:
        Exception: Whatever the SDK raises; nobody is told of a run that cannot be written.
    """
    from google.cloud import aiplatform

    place = {"project": config.cloud.project, "location": config.cloud.region}
    # `init(experiment=...)` would make the project a TensorBoard that somebody has to pay for.
    aiplatform.init(**place)
    experiment = aiplatform.Experiment.get_or_create(config.vertex.experiment)
    name = run_name(config.vertex.experiment, record.id)
    known = aiplatform.ExperimentRun.get(name, experiment=experiment)
    run = known or aiplatform.ExperimentRun.create(name, experiment=experiment)
    job = aiplatform.PipelineJob.get(job_name)
    run.log_params(describe_params(record, config, _parameters(job), view.checkpoint))
    run.log_metrics(describe_metrics(record, view))
    run.log(pipeline_job=job)
    pages = find_pages(view.evaluation.task) if view.evaluation is not None else None
    if view.evaluation is not None and pages and pages.classification and not _has_classification(run):
        told = pages.classification(view.evaluation)
        run.log_classification_metrics(display_name=CLASSIFICATION_NAME, **_figures(told))
    states: Any = aiplatform.gapic.Execution.State
    run.end_run(state=states.COMPLETE if record.state == "succeeded" else states.FAILED)
    return name


def run_name(experiment: str, run_id: str) -> str:
    """Return what a run is called in an experiment: its id, or its end where both together are too long.

    The end tells runs apart: time and digits.
    """
    return run_id[-(MAX_LENGTH - len(experiment) - 1) :].lstrip("-")


def describe_params(
    record: RunRecord, config: RunConfig, given: Mapping[str, Any], trained: CheckpointManifest | None
) -> dict[str, Value]:
    """Return what the run was asked for.

    Args:
        record: For the hash of its configuration.
        config: The configuration.
        given: Parameters of the PipelineJob: its region may be another than the configuration's.
        trained: What came of the training, which has the hash of what decides the parameters of the network: runs of
            one recipe have the same, in whatever line, region or on whatever machines they ran. The hash of the
            configuration is one of all its fields, those included.
    """
    task, training, machine = config.task, config.train, config.resources.machine
    made_from = {name: value for name, value in record.made_from.items() if name in ("shard", "config")}
    return {
        "line": config.run.name,
        "task": task.name,
        "seed": config.run.seed,
        "architecture": config.model.architecture or "own",
        **({"image_size": config.data.image_size} if task.may_read_images else {}),
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
        "schedule": training.schedule,
        "weight_decay": training.weight_decay,
        "global_batch_size": training.global_batch_size,
        "epochs": training.epochs,
        "precision": training.precision,
        "export_precision": config.export.precision,
        "machine": machine.type,
        "accelerator": machine.accelerator_type or "none",
        "nodes": str(config.resources.nodes),
        "strategy": str(given.get("strategy") or config.resources.strategy),
        "region": str(given.get("region") or config.cloud.region),
        **{f"{'shards' if name == 'shard' else name}_sha256": value for name, value in made_from.items()},
        **({"train_fingerprint": trained.fingerprint} if trained is not None else {}),
    }


def describe_metrics(record: RunRecord, view: RunView) -> dict[str, float]:
    """Return what came out, by the names of the stages' own metrics; what is not known is left out.

    One number has one name in both of Vertex AI's comparisons, that of pipelines' runs and that of experiments.
    """
    found: dict[str, float] = {"run_wall_s": record.wall_s}
    if view.profile is not None:
        # A report that chose what it has not measured: the others are told all the same.
        with suppress(DataError):
            found |= profile_metrics(view.profile)
    if view.checkpoint is not None or record.goodput is not None:
        found |= train_metrics(view.checkpoint, record.goodput, headline(view))
    if view.export is not None:
        found |= export_metrics(view.export, find_verdict(view.export, view.verifications))
    # The experiment has them as metadata of an artifact.
    return bound_metadata(known(found))[0]


def _has_classification(run: Any) -> bool:
    """Whether an earlier attempt came as far as this: a row is made before what is in it."""
    return any(found["display_name"] == CLASSIFICATION_NAME for found in run.get_classification_metrics())


def _parameters(job: Any) -> dict[str, Any]:
    return dict(job.gca_resource.runtime_config.parameter_values)


def _figures(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a classification as the SDK's log_classification_metrics takes it."""
    matrix, points = told["confusionMatrix"], told.get("confidenceMetrics", [])
    return {
        "labels": [entry["displayName"] for entry in matrix["annotationSpecs"]],
        "matrix": [entry["row"] for entry in matrix["rows"]],
        "fpr": [point["falsePositiveRate"] for point in points] or None,
        "tpr": [point["recall"] for point in points] or None,
        "threshold": [point["confidenceThreshold"] for point in points] or None,
    }
