"""PipelineService: pipeline jobs. Creating one checks it, stores it and starts its execution.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.pipelineJobs
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc.status_pb2 import Status

from rehearsal.doors.errors import CODES, ServiceError, invalid
from rehearsal.doors.messages import plain
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import list_page
from rehearsal.resources.operations import delete_ended
from rehearsal.resources.states import has_ended
from rehearsal.vertex import custom_jobs, metadata
from rehearsal.vertex.pipeline_rules import check_pipeline_job, to_values

_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
# proto-plus declares an enum's members as numbers.
_STATE: Any = types.PipelineState
# Vertex labels what a pipeline starts; GCPC's launchers take this from VERTEX_AI_PIPELINES_RUN_LABELS and put it on
# their custom jobs and models. Cancelling a pipeline finds its custom jobs by it.
RUN_LABEL = "vertex-ai-pipelines-run-billing-id"


def create(cloud: CloudState, request: types.CreatePipelineJobRequest, caller: Caller) -> types.PipelineJob:
    """Check, store and start a pipeline job."""
    parent = cloud.resolve_name(request.parent, "aiplatform.pipelineJobs.create")
    job = types.PipelineJob(request.pipeline_job)
    job_id = request.pipeline_job_id or f"pipeline-{cloud.store.new_id()}"
    if _ID.fullmatch(job_id) is None:
        raise invalid("pipeline_job_id", f"{job_id!r} does not match [a-z][-a-z0-9]{{0,127}}")
    check_pipeline_job(cloud, job, parent, named=True)
    if job.preflight_validations and cloud.preflight_errors:
        # In the form that the SDK takes apart; the words of each are the test's.
        told = "".join(
            f'CreatePipelineJobApiErrorDetail"\n message={one}, cause=null\n' for one in cloud.preflight_errors
        )
        raise ServiceError("FAILED_PRECONDITION", f'Preflight validations failed: "{told}')
    return add(cloud, f"{parent}/pipelineJobs/{job_id}", job)


def add(cloud: CloudState, name: str, job: types.PipelineJob) -> types.PipelineJob:
    """Store a pipeline job under its full name and start it: what creation and a schedule have in common."""
    job.name, job.state = name, _STATE.PIPELINE_STATE_PENDING
    job.create_time = job.update_time = cloud.now()
    job.labels.setdefault(RUN_LABEL, cloud.store.new_id())
    parent, job_id = name.split("/pipelineJobs/")
    pipeline = str(to_values(plain(job).pipeline_spec)["pipelineInfo"]["name"])
    cloud.add(job)
    contexts = metadata.add_run(cloud, parent, job_id, pipeline)

    def attach(job: types.PipelineJob) -> None:
        job.job_detail.pipeline_context, job.job_detail.pipeline_run_context = contexts

    cloud.store.update(name, attach)
    root = job.runtime_config.gcs_output_directory
    if cloud.buckets.has(root):
        cloud.pipelines.start(name)
    else:
        cloud.store.update(name, partial(_fail, cloud, root))
    return types.PipelineJob(cloud.store.get(name))


def _fail(cloud: CloudState, root: str, job: types.PipelineJob) -> None:
    """End a job whose root is in no bucket: it is created, as at the real service, and fails when it is begun."""
    job.state, job.end_time = _STATE.PIPELINE_STATE_FAILED, cloud.now()
    account = job.service_account or "the default account"
    text = f"Failed to create pipeline job. Error: {account} cannot use {root}: the bucket is not there, or not its own"
    job.error = Status(code=CODES["FAILED_PRECONDITION"][0], message=text)


def get(cloud: CloudState, request: types.GetPipelineJobRequest, caller: Caller) -> types.PipelineJob:
    """Return a pipeline job."""
    job = types.PipelineJob(cloud.find(request.name, "aiplatform.pipelineJobs.get"))
    # An experiment that took the run in since is among its context's parents.
    context = cloud.store.find(job.job_detail.pipeline_run_context.name)
    if context is not None:
        job.job_detail.pipeline_run_context = context
    return job


def list_(cloud: CloudState, request: types.ListPipelineJobsRequest, caller: Caller) -> types.ListPipelineJobsResponse:
    """List pipeline jobs, the newest first."""
    computed = {"pipeline_name": lambda job: to_values(plain(job).pipeline_spec)["pipelineInfo"]["name"]}
    chosen, token = list_page(cloud, request, types.PipelineJob, "pipelineJobs", computed=computed)
    if paths := list(request.read_mask.paths):
        chosen = [_masked(job, paths) for job in chosen]
    return types.ListPipelineJobsResponse(pipeline_jobs=chosen, next_page_token=token)


def _masked(job: types.PipelineJob, paths: list[str]) -> types.PipelineJob:
    """Return a job with the fields of a mask only; those of its spec, a Struct, are named pipeline_spec.FIELD."""
    found = types.PipelineJob()
    inner = [path.split(".")[1] for path in paths if path.startswith("pipeline_spec.")]
    rest = [path for path in paths if not path.startswith("pipeline_spec.")]
    FieldMask(paths=rest).MergeMessage(plain(job), plain(found))
    spec = plain(job).pipeline_spec
    for name in (
        "".join([head, *(word.capitalize() for word in tail)]) for head, *tail in (n.split("_") for n in inner)
    ):
        if name in spec:
            plain(found).pipeline_spec.fields[name].CopyFrom(spec.fields[name])
    return found


def cancel(cloud: CloudState, request: types.CancelPipelineJobRequest, caller: Caller) -> Empty:
    """Ask that a pipeline job end, with the custom jobs that it started; what has ended is left alone."""
    job = cloud.find(request.name, "aiplatform.pipelineJobs.cancel")
    if not has_ended(job):
        cloud.pipelines.cancel(job.name)
        place = job.name.rsplit("/pipelineJobs/", 1)[0]
        custom_jobs.cancel_those_of(cloud, place, RUN_LABEL, job.labels[RUN_LABEL])
    return Empty()


def delete(cloud: CloudState, request: types.DeletePipelineJobRequest, caller: Caller) -> Any:
    """Delete a pipeline job that has ended."""
    return delete_ended(cloud, cloud.find(request.name, "aiplatform.pipelineJobs.delete"))


METHODS = {
    "CreatePipelineJob": create,
    "GetPipelineJob": get,
    "ListPipelineJobs": list_,
    "CancelPipelineJob": cancel,
    "DeletePipelineJob": delete,
}
