"""A run of Vertex AI as a row of an experiment: parameters and metrics.

Vertex AI compares the runs of an experiment (console: Experiments; `aiplatform.get_experiment_df`). The row is a
system.ExperimentRun, by Google's SDK; the PipelineJob is its child, not a row beside it.
"""

from __future__ import annotations

from contracts.artifacts import RunRecord
from contracts.config import RunConfig

Value = float | int | str
# The SDK's limit for the experiment's name, a hyphen and the run's (ExperimentRun._validate_run_id).
MAX_LENGTH = 121
_PARAMS = {
    "run": ("seed",),
    "task": ("name",),
    "model": ("architecture", "weights"),
    "data": ("image_size",),
    "train": ("optimizer", "learning_rate", "schedule", "weight_decay", "global_batch_size", "epochs", "precision"),
    "resources": ("nodes", "strategy"),
}


def log_run(record: RunRecord, config: RunConfig, job_name: str) -> str:
    """Create or update the row of a run in its experiment; return the row's name.

    Args:
        record: Record of the run.
        config: Its whole configuration; `vertex.experiment` is set.
        job_name: Resource name of its PipelineJob.

    Raises:
        Exception: Whatever the SDK raises.
    """
    from google.cloud import aiplatform
    from google.cloud.aiplatform import gapic

    # `init(experiment=...)` would create a TensorBoard instance, which costs money.
    aiplatform.init(project=config.cloud.project, location=config.cloud.region)
    experiment = aiplatform.Experiment.get_or_create(config.vertex.experiment)
    # Truncated from the left to the limit of the SDK.
    name = record.id[-(MAX_LENGTH - len(config.vertex.experiment) - 1) :].lstrip("-")
    existing = aiplatform.ExperimentRun.get(name, experiment=experiment)
    run = existing or aiplatform.ExperimentRun.create(name, experiment=experiment)
    run.log_params({**describe_params(record, config), "region": job_name.split("/")[3]})
    run.log_metrics(record.row)
    states = gapic.Execution.State
    run.end_run(state=states.COMPLETE if record.state == "succeeded" else states.FAILED)
    # Last, since the service may refuse a job of another region.
    run.log(pipeline_job=aiplatform.PipelineJob.get(job_name))
    return name


def describe_params(record: RunRecord, config: RunConfig) -> dict[str, Value]:
    """Return the row's parameters: keys of the configuration, and hashes of shards and configuration."""
    values = {f"{section}.{key}": record.config[section][key] for section, keys in _PARAMS.items() for key in keys}
    hashes = {f"{name}_sha256": value for name, value in record.made_from.items() if name in ("shard", "config")}
    machine = config.resources.machine
    gpus = {"machine": machine.type, "accelerator": machine.accelerator_type or "none"}
    params = {"line": config.run.name, **values, **gpus, **hashes}
    return {name: value if isinstance(value, int | float) else str(value) for name, value in params.items()}
