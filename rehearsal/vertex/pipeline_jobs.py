"""PipelineService: pipeline jobs (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.pipelineJobs)."""

from __future__ import annotations

import re
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty
from google.rpc.code_pb2 import FAILED_PRECONDITION
from google.rpc.status_pb2 import Status

from rehearsal.errors import ServiceError, invalid_argument
from rehearsal.servers.messages import plain
from rehearsal.vertex.checks import check_pipeline_job, to_values
from rehearsal.vertex.listing import lister
from rehearsal.vertex.small_services import make_run_contexts
from rehearsal.vertex.state import Caller, CloudState
from rehearsal.vertex.store import has_ended

_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
# proto-plus declares an enum's members as numbers.
_STATE: Any = types.PipelineState
# Label of a pipeline's jobs: GCPC's launchers read it from VERTEX_AI_PIPELINES_RUN_LABELS and set it on their jobs.
# Cancelling a pipeline finds its custom jobs by it.
RUN_LABEL = "vertex-ai-pipelines-run-billing-id"


def create(cloud: CloudState, request: types.CreatePipelineJobRequest, caller: Caller) -> types.PipelineJob:
    """Check, store and start a pipeline job."""
    parent = cloud.resolve_name(request.parent, "aiplatform.pipelineJobs.create")
    job = types.PipelineJob(request.pipeline_job)
    job_id = request.pipeline_job_id or f"pipeline-{cloud.store.new_id()}"
    if _ID.fullmatch(job_id) is None:
        raise invalid_argument("pipeline_job_id", f"{job_id!r} does not match {_ID.pattern}")
    check_pipeline_job(job)
    return add(cloud, f"{parent}/pipelineJobs/{job_id}", job)


def add(cloud: CloudState, name: str, job: types.PipelineJob) -> types.PipelineJob:
    """Store a pipeline job under its full name and start it.

    If the bucket of its root does not exist, the job is created and fails, as in the real service.
    """
    job.name, job.state = name, _STATE.PIPELINE_STATE_PENDING
    job.create_time = job.update_time = cloud.now()
    job.labels.setdefault(RUN_LABEL, cloud.store.new_id())
    root = job.runtime_config.gcs_output_directory
    has_bucket = cloud.has_bucket(root)
    if not has_bucket:
        job.state, job.end_time = _STATE.PIPELINE_STATE_FAILED, cloud.now()
        account = job.service_account or "the default account"
        text = f"Failed to create pipeline job. Error: {account} cannot use {root}: the bucket does not exist"
        job.error = Status(code=FAILED_PRECONDITION, message=text)
    if cloud.store.find(name) is not None:
        raise ServiceError("ALREADY_EXISTS", f"There is {name} already")
    parent, job_id = name.split("/pipelineJobs/")
    contexts = make_run_contexts(cloud, parent, job_id, name_of(job))
    job.job_detail.pipeline_context, job.job_detail.pipeline_run_context = contexts
    cloud.add(job)
    if has_bucket:
        cloud.pipelines.start(name)
    return types.PipelineJob(cloud.store.get(name))


def name_of(job: types.PipelineJob) -> str:
    """Return the name of a job's pipeline."""
    return str(to_values(plain(job).pipeline_spec)["pipelineInfo"]["name"])


def get(cloud: CloudState, request: types.GetPipelineJobRequest, caller: Caller) -> types.PipelineJob:
    """Return a pipeline job with the current context of its run: an experiment may have become the parent."""
    job = types.PipelineJob(cloud.find(request.name, "aiplatform.pipelineJobs.get"))
    context = cloud.store.find(job.job_detail.pipeline_run_context.name)
    if context is not None:
        job.job_detail.pipeline_run_context = context
    return job


def cancel(cloud: CloudState, request: types.CancelPipelineJobRequest, caller: Caller) -> Empty:
    """Cancel a pipeline job and the custom jobs that it started."""
    job = cloud.find(request.name, "aiplatform.pipelineJobs.cancel")
    if not has_ended(job):
        cloud.pipelines.cancel(job.name)
        place = job.name.rsplit("/pipelineJobs/", 1)[0]
        for custom in cloud.store.list(f"{place}/customJobs/"):
            if custom.labels.get(RUN_LABEL) == job.labels[RUN_LABEL] and not has_ended(custom):
                cloud.custom_jobs.cancel(custom.name)
    return Empty()


METHODS = {
    "CreatePipelineJob": create,
    "GetPipelineJob": get,
    # Returns complete jobs; the request's field mask is ignored.
    "ListPipelineJobs": lister(types.PipelineJob, "pipelineJobs", types.ListPipelineJobsResponse, "pipeline_jobs"),
    "CancelPipelineJob": cancel,
}
