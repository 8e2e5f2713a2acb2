"""Jobs as Vertex AI's CustomJobs: created by Google's client, or by a task of a pipeline that is being compiled.

Pool 0 has one replica, pool 1 the others (https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training):
a single pool of N is refused by Vertex AI. Arguments are separate list items, since a value that is known only while
the pipeline runs takes the place of a whole item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from contracts.config import RunConfig
from contracts.machines import find_machine
from pipelines.google import explained, job_client, read_options, write_options
from pipelines.jobs import JobSpec, JobState, Phase
from pipelines.runs.tasks import error_text

# States of a CustomJob (google.cloud.aiplatform_v1.types.JobState); one that is being cancelled still runs.
_PHASES = {
    "QUEUED": Phase.WAITING,
    "PENDING": Phase.WAITING,
    "PAUSED": Phase.WAITING,
    "RUNNING": Phase.RUNNING,
    "CANCELLING": Phase.RUNNING,
    "UPDATING": Phase.RUNNING,
    "SUCCEEDED": Phase.SUCCEEDED,
    "PARTIALLY_SUCCEEDED": Phase.SUCCEEDED,
    "FAILED": Phase.FAILED,
    "EXPIRED": Phase.FAILED,
    "CANCELLED": Phase.CANCELLED,
}


class Vertex:
    """CustomJobs of a configuration's project, with its account, network, key and labels."""

    def __init__(self, config: RunConfig, *, region: str = "") -> None:
        """Read the configuration; nobody is asked.

        Args:
            config: The resolved configuration.
            region: Of the jobs; empty: the configuration's.
        """
        self._cloud, self._vertex = config.cloud, config.vertex
        self._region = region or config.cloud.region
        self._psc = {"network_attachment": config.vertex.psc_attachment} if config.vertex.psc_attachment else None
        self._tensorboard = {f"{config.run.name}-train": config.vertex.tensorboard}

    def submit(self, spec: JobSpec) -> str:
        """Create the CustomJob, and return its full resource name."""
        cloud, vertex = self._cloud, self._vertex
        scheduling: dict[str, Any] = {"strategy": spec.strategy, "restart_job_on_worker_restart": True}
        if spec.timeout_s is not None:
            scheduling["timeout"] = {"seconds": round(spec.timeout_s)}
        if spec.strategy == "FLEX_START":
            scheduling["max_wait_duration"] = {"seconds": round(spec.max_wait_s)}
        job_spec = {
            "worker_pool_specs": worker_pools(spec),
            "scheduling": scheduling,
            "service_account": cloud.service_account,
            "network": vertex.peered_network,
            "psc_interface_config": self._psc,
        }
        request = {"display_name": spec.name, "labels": dict(cloud.labels), "job_spec": job_spec}
        if cloud.kms_key:
            request["encryption_spec"] = {"kms_key_name": cloud.kms_key}
        with explained(f"submitting {spec.name}", project=cloud.project):
            parent = f"projects/{cloud.project}/locations/{self._region}"
            job = job_client(self._region).create_custom_job(parent=parent, custom_job=request, **write_options())
        return str(job.name)

    def state(self, job: str) -> JobState:
        """Return how far a CustomJob is; the exit code of its containers is nowhere."""
        with explained(job, project=self._cloud.project):
            message = job_client(region_of(job)).get_custom_job(name=job, **read_options())
        return JobState(phase_of(message), message=error_text(message.error))

    def cancel(self, job: str) -> None:
        """Ask for the end of a CustomJob; one that has ended already, or is gone, is no error."""
        with explained(f"cancelling {job}", project=self._cloud.project):
            cancel_custom_job(job_client(region_of(job)), job)

    def logs(self, job: str) -> Iterator[str]:
        """Yield what its machines have printed, by time, as far as Cloud Logging has it."""
        from pipelines.runs.logs import read_job_entries

        with explained(job, project=self._cloud.project):
            created = job_client(region_of(job)).get_custom_job(name=job, **read_options()).create_time
        for entry in read_job_entries(self._cloud.project, job, created):
            yield entry.text

    def task(self, spec: JobSpec, **values: Any) -> Any:
        """Return the task that creates the CustomJob, inside of the pipeline that is being compiled.

        Args:
            spec: The job; strategy and limits are parameters of the pipeline.
            values: Parameters: location, strategy, max_wait_duration, timeout, base_output_directory.
        """
        from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp

        cloud, vertex = self._cloud, self._vertex
        if self._psc:
            values["psc_interface_config"] = self._psc
        return CustomTrainingJobOp(
            display_name=spec.name,
            worker_pool_specs=worker_pools(spec),
            project=cloud.project,
            restart_job_on_worker_restart=True,
            service_account=cloud.service_account,
            tensorboard=self._tensorboard.get(spec.name, ""),
            network=vertex.peered_network,
            labels=dict(cloud.labels),
            encryption_spec_key_name=cloud.kms_key,
            **values,
        )


def worker_pools(spec: JobSpec) -> list[dict[str, Any]]:
    """Return the worker pools of a CustomJob.

    Raises:
        ConfigError: There is no such machine.
    """
    machine = find_machine(spec.machine)
    machine_spec: dict[str, Any] = {"machine_type": machine.type}
    if machine.accelerator_count:
        machine_spec |= {
            "accelerator_type": machine.accelerator_type,
            "accelerator_count": machine.accelerator_count,
        }
    pool: Mapping[str, Any] = {
        "machine_spec": machine_spec,
        "disk_spec": {"boot_disk_type": spec.machine.boot_disk_type, "boot_disk_size_gb": spec.machine.boot_disk_gb},
        "container_spec": {
            "image_uri": spec.image,
            "command": list(spec.command),
            "args": list(spec.args),
            "env": [{"name": name, "value": value} for name, value in sorted(spec.env.items())],
        },
    }
    pools = [{**pool, "replica_count": 1}]
    if spec.nodes > 1:
        pools.append({**pool, "replica_count": spec.nodes - 1})
    return pools


def phase_of(message: Any) -> Phase:
    """Return how far a CustomJob is, by its message."""
    return _PHASES.get(str(message.state.name).removeprefix("JOB_STATE_"), Phase.WAITING)


def region_of(job: str) -> str:
    """Return the region of a CustomJob, by its full resource name."""
    return job.split("/")[3]


def cancel_custom_job(client: Any, job: str) -> None:
    """Ask for the end of a CustomJob; one that has ended already, or is gone, is no error."""
    from google.api_core.exceptions import FailedPrecondition, NotFound

    try:
        client.cancel_custom_job(name=job, **read_options())
    except (FailedPrecondition, NotFound):
        return
