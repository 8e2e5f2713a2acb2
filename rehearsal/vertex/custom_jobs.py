"""JobService: custom jobs.

Get is held while a launcher of Google's components asks: its poll pauses 20 s between two answers, so the only way
that it hears of the end at once is that the answer waits for the end. Once per job it hears that the job runs, after
some time. Others are answered at once.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
"""

from __future__ import annotations

import time
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty

from rehearsal.doors.errors import not_found
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import list_page
from rehearsal.resources.operations import delete_ended
from rehearsal.resources.states import has_ended
from rehearsal.vertex.rules import check_custom_job

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.JobState
_LAUNCHER = "google-cloud-pipeline-components"
# How often a held answer looks whether anybody still waits for it.
_LOOK_S = 0.5


def create(cloud: CloudState, request: types.CreateCustomJobRequest, caller: Caller) -> types.CustomJob:
    """Check, store and start a custom job."""
    parent = cloud.resolve_name(request.parent, "aiplatform.customJobs.create")
    job = types.CustomJob(request.custom_job)
    check_custom_job(cloud, job, parent)
    name = f"{parent}/customJobs/{cloud.store.new_id()}"
    job.name, job.state = name, _STATE.JOB_STATE_PENDING
    job.create_time = job.update_time = cloud.now()
    cloud.store.add(name, job)
    cloud.custom_jobs.start(name)
    return types.CustomJob(cloud.store.get(name))


def get(cloud: CloudState, request: types.GetCustomJobRequest, caller: Caller) -> types.CustomJob:
    """Return a custom job; to a launcher once it has ended, or once it has run for `CloudState.first_hold_s`."""
    name = cloud.resolve_name(request.name, "aiplatform.customJobs.get")
    try:
        job = cloud.store.get(name)
        if _LAUNCHER in caller.user_agent:
            first_s = cloud.hold_s if name in cloud.told_running else cloud.first_hold_s
            began = time.monotonic()
            while not has_ended(job):
                held_s, runs = time.monotonic() - began, job.state == _STATE.JOB_STATE_RUNNING
                if held_s > cloud.hold_s or (runs and held_s > first_s):
                    break
                if cloud.stopping.is_set() or not caller.is_there():
                    break
                job = cloud.store.wait(name, has_ended, _LOOK_S)
            if job.state == _STATE.JOB_STATE_RUNNING:
                cloud.told_running.add(name)
    except KeyError:
        raise not_found(name) from None
    return types.CustomJob(job)


def list_(cloud: CloudState, request: types.ListCustomJobsRequest, caller: Caller) -> types.ListCustomJobsResponse:
    """List custom jobs, the newest first."""
    chosen, token = list_page(cloud, request, types.CustomJob, "customJobs")
    return types.ListCustomJobsResponse(custom_jobs=chosen, next_page_token=token)


def cancel(cloud: CloudState, request: types.CancelCustomJobRequest, caller: Caller) -> Empty:
    """Ask that a custom job end; one that has ended is left alone."""
    job = cloud.find(request.name, "aiplatform.customJobs.cancel")
    if not has_ended(job):
        cloud.custom_jobs.cancel(job.name)
    return Empty()


def delete(cloud: CloudState, request: types.DeleteCustomJobRequest, caller: Caller) -> Any:
    """Delete a custom job that has ended."""
    return delete_ended(cloud, cloud.find(request.name, "aiplatform.customJobs.delete"))


def cancel_those_of(cloud: CloudState, parent: str, label: str, value: str) -> None:
    """Cancel the custom jobs of a place that carry a label and have not ended."""
    for job in cloud.store.list(f"{parent}/customJobs/"):
        if job.labels.get(label) == value and not has_ended(job):
            cloud.custom_jobs.cancel(job.name)


METHODS = {
    "CreateCustomJob": create,
    "GetCustomJob": get,
    "ListCustomJobs": list_,
    "CancelCustomJob": cancel,
    "DeleteCustomJob": delete,
}
