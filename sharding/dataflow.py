"""The stage as a Dataflow job: its options, and its submission.

Workers run a container image of this project (`cloud.images.cpu`), without a pickled main session or a package list.
Options: https://cloud.google.com/dataflow/docs/reference/pipeline-options
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from contracts.config import RunConfig
from contracts.errors import ConfigError, ShardlineError, TryAgain
from contracts.result import LINE_LABEL, RUN_LABEL, run_label

if TYPE_CHECKING:
    from sharding.runners import Build

_CALL_TIMEOUT_S = 60.0
# Time limit of the retries of one call.
_RETRY_S = 180.0
_POLL_INTERVAL_S = 10.0
_ENDED = {f"JOB_STATE_{name}" for name in ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")}
# Disk of a worker: it holds the shards being written.
_DISK_GB = 50


def dataflow_flags(config: RunConfig, *, job_name: str, output_uri: str, run_id: str = "") -> list[str]:
    """Return Beam's flags for a job.

    Args:
        config: Its sections cloud, dataflow and resources.
        job_name: Lower-case letters, digits and '-'.
        output_uri: gs:// URI of the output; temporary files go to its bucket.
        run_id: The run that the job is labelled with; empty: none.

    Raises:
        ConfigError: A field that the service needs is not set.
    """
    _require(config, "cloud.project", "cloud.region", "cloud.images.cpu")
    cloud, dataflow = config.cloud, config.dataflow
    temp_location = f"gs://{_bucket_of(output_uri)}/dataflow/temp"
    optional = {
        "subnetwork" if "/" in dataflow.network else "network": dataflow.network,
        "service_account_email": cloud.service_account,
        "dataflow_kms_key": cloud.kms_key,
    }
    run_labels = {LINE_LABEL: config.run.name, RUN_LABEL: run_label(run_id)} if run_id else {}
    labels = {**cloud.labels, **run_labels}
    return [
        f"--project={cloud.project}",
        f"--region={cloud.region}",
        f"--job_name={job_name}",
        f"--temp_location={temp_location}",
        f"--staging_location={temp_location}",
        f"--sdk_container_image={cloud.images.cpu}",
        # The image holds everything: nothing is installed or downloaded when a worker starts.
        "--sdk_location=container",
        f"--machine_type={dataflow.machine_type}",
        f"--max_num_workers={dataflow.max_workers}",
        f"--disk_size_gb={_DISK_GB}",
        *(f"--{name}={value}" for name, value in optional.items() if value),
        *(["--no_use_public_ips"] * (not dataflow.public_ips)),
        *(f"--labels={key}={value}" for key, value in sorted(labels.items())),
        "--experiments=use_runner_v2",
        # The service starts a process for each vCPU; one thread in each, and one process that writes (workers.py), so
        # that no more shards are under way than the machine has memory for.
        "--number_of_worker_harness_threads=1",
        "--experiments=disable_logging_submission_environment",
    ]


def _require(config: RunConfig, *names: str) -> None:
    if absent := [name for name in names if not attrgetter(name)(config)]:
        raise ConfigError(
            f"resources.beam_runner is dataflow, but {', '.join(absent)} is not set",
            allowed="a project, a region, and an image with Beam and this project in it",
            todo="set them, or use resources.beam_runner=fnapi",
        )


def submit(build: Build, config: RunConfig, *, job_name: str, output_uri: str, run_id: str = "") -> Any:
    """Submit the graph; return Beam's handle of the running job."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    options = PipelineOptions(dataflow_flags(config, job_name=job_name, output_uri=output_uri, run_id=run_id))
    pipeline = beam.Pipeline(runner=DataflowRunner(), options=options)
    build(pipeline)
    return pipeline.run()


def find_job(config: RunConfig, job_name: str) -> str | None:
    """Return the id of the newest job of a name that has not ended; None: there is none.

    Args:
        config: Its section cloud.
        job_name: Of the job.

    Raises:
        ConfigError: A field that the service needs is not set.
        TryAgain: No answer.
    """
    from google.cloud import dataflow_v1beta3

    _require(config, "cloud.project", "cloud.region")
    request = dataflow_v1beta3.ListJobsRequest(
        project_id=config.cloud.project, location=config.cloud.region, name=job_name
    )
    client = dataflow_v1beta3.JobsV1Beta3Client()
    listed = _call(lambda **options: list(client.list_jobs(request, **options)), f"list jobs named {job_name}")
    jobs = [job for job in listed if job.name == job_name]
    running = [job for job in jobs if job.current_state.name not in _ENDED]
    return str(max(running, key=lambda job: str(job.create_time)).id) if running else None


def wait_for(config: RunConfig, job_id: str) -> None:
    """Wait for the end of a job.

    Raises:
        ShardlineError: It failed.
        TryAgain: It was cancelled, or the service does not answer.
    """
    from google.cloud import dataflow_v1beta3

    request = dataflow_v1beta3.GetJobRequest(
        project_id=config.cloud.project, location=config.cloud.region, job_id=job_id
    )
    client = dataflow_v1beta3.JobsV1Beta3Client()
    while True:
        state = _call(lambda **options: client.get_job(request, **options), f"get job {job_id}").current_state.name
        if state in _ENDED:
            break
        time.sleep(_POLL_INTERVAL_S)
    if state == "JOB_STATE_CANCELLED":
        raise TryAgain(f"the Dataflow job {job_id} was cancelled")
    if state != "JOB_STATE_DONE":
        raise ShardlineError(f"Dataflow ended job {job_id} as {state}")


def _call(call: Callable[..., Any], request: str) -> Any:
    """Call the service, with retries and exponential backoff.

    Raises:
        TryAgain: No answer.
    """
    from google.api_core import exceptions as api
    from google.api_core.retry import Retry, if_exception_type

    kinds = (api.ServiceUnavailable, api.GatewayTimeout, api.InternalServerError, api.BadGateway)
    try:
        return call(timeout=_CALL_TIMEOUT_S, retry=Retry(predicate=if_exception_type(*kinds), timeout=_RETRY_S))
    except (api.RetryError, *kinds) as error:
        raise TryAgain(f"Dataflow does not answer ({request}): {error}") from None


def _bucket_of(uri: str) -> str:
    scheme, _, path = uri.partition("://")
    if scheme != "gs":
        raise ConfigError(
            f"Dataflow cannot write to {uri}",
            allowed="an output below gs://BUCKET",
            todo="set run.root to a folder in a bucket",
        )
    return path.partition("/")[0]
