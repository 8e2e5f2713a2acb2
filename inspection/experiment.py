"""A run of Vertex AI as a row of an experiment: what it was asked for, and what it came to.

Vertex AI compares the runs of an experiment (console: Experiments; `aiplatform.get_experiment_df`). The row is a
system.ExperimentRun, by Google's SDK; the PipelineJob is its child, not a row beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contracts.artifacts import RunRecord
from contracts.config import RunConfig

if TYPE_CHECKING:
    from inspection.run.view import RunView

# The SDK's limit for the experiment's name, a hyphen and the run's (ExperimentRun._validate_run_id).
MAX_LENGTH = 121
Value = float | int | str
CLASSIFICATION_NAME = "test split"


def log_run(record: RunRecord, config: RunConfig, view: RunView) -> str:
    """Write a run into its experiment, once more if it is there already; return the row's name.

    Args:
        record: What the run came to.
        config: Its whole configuration; vertex.experiment is set.
        view: All that is known of it.

    Raises:
        Exception: Whatever the SDK raises; nobody is told of a run that cannot be written.
    """
    from google.cloud import aiplatform

    vertex = config.vertex
    place = {"project": vertex.project, "location": vertex.region}
    # `init(experiment=...)` would make the project a TensorBoard that somebody has to pay for.
    aiplatform.init(**place)
    experiment = aiplatform.Experiment.get_or_create(vertex.experiment)
    name = run_name(vertex.experiment, record.id)
    known = aiplatform.ExperimentRun.get(name, experiment=experiment)
    run = known or aiplatform.ExperimentRun.create(name, experiment=experiment)
    job = aiplatform.PipelineJob.get(record.id, **place)
    run.log_params(describe_params(record, config, _parameters(job)))
    run.log_metrics(describe_metrics(record, view))
    run.log(pipeline_job=job)
    if known is None and view.evaluation is not None:
        from inspection.stages.classification import tell_classification

        run.log_classification_metrics(
            display_name=CLASSIFICATION_NAME, **_figures(tell_classification(view.evaluation))
        )
    states: Any = aiplatform.gapic.Execution.State
    run.end_run(state=states.COMPLETE if record.state == "succeeded" else states.FAILED)
    return name


def run_name(experiment: str, run_id: str) -> str:
    """Return what a run is called in an experiment: its id, or its end where both together are too long.

    The end tells runs apart: time, digits, and the rung of a ladder.
    """
    return run_id[-(MAX_LENGTH - len(experiment) - 1) :].lstrip("-")


def describe_params(record: RunRecord, config: RunConfig, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return what the run was asked for.

    Args:
        record: For the hash of its configuration.
        config: The configuration.
        given: Parameters of the PipelineJob: a rung of the ladder is another region or strategy.
    """
    train, machine = config.train, config.resources.machine
    made_from = {name: value for name, value in record.made_from.items() if name in ("shard", "config")}
    return {
        "line": config.run.name,
        "seed": config.run.seed,
        "architecture": config.model.architecture or "own",
        "image_size": config.data.image_size,
        "optimizer": train.optimizer,
        "learning_rate": train.learning_rate,
        "schedule": train.schedule,
        "weight_decay": train.weight_decay,
        "global_batch_size": train.global_batch_size,
        "epochs": train.epochs,
        "precision": train.precision,
        "export_precision": config.export.precision,
        "machine": machine.type,
        "accelerator": machine.accelerator_type or "none",
        "nodes": str(config.resources.nodes),
        "strategy": str(given.get("strategy") or config.resources.strategy),
        "region": str(given.get("region") or config.vertex.region),
        **{f"{'shards' if name == 'shard' else name}_sha256": value for name, value in made_from.items()},
    }


def describe_metrics(record: RunRecord, view: RunView) -> dict[str, float]:
    """Return what came out, numbers alone; what is not known is left out."""
    found: dict[str, float | int | None] = dict(record.results.get("metrics", {}))
    found["wall_s"] = record.wall_s
    found["steps"] = view.checkpoint.step if view.checkpoint else None
    if (goodput := record.goodput) is not None:
        found |= {
            "goodput_percent": goodput.goodput_percent,
            "preemptions": goodput.preemptions,
            "attempts": goodput.attempts,
            "lost_steps": goodput.lost_steps,
            "train_wall_s": goodput.wall_s,
            "node_hours": goodput.node_hours,
        }
    if view.money is not None:
        # As the metric of the training: the upper end.
        found["cost_usd"] = view.money.cost_high_usd
    if (exported := view.export) is not None:
        found["exported_accuracy"] = exported.accuracy.get(exported.precision)
        found["gates_failed"] = sum(gate.status == "failed" for gate in exported.gates)
        found["proven"] = int(exported.verdict == "proven")
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


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
