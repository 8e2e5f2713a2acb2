"""Dataflow's jobs, messages and metrics, as far as Beam's DataflowRunner and GCPC's wait ask.

A job is stored under projects/NUMBER/locations/REGION/jobs/ID; what executes it is given to the server. Get over REST
is held until the job has ended: the launcher that waits for a job pauses 20 s between two answers. Over gRPC, by which
Beam asks, it is answered at once.

https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.locations.jobs
"""

from __future__ import annotations

import time
from typing import Any

from google.cloud.dataflow_v1beta3 import types

from rehearsal.doors.errors import ServiceError, invalid, not_found
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.states import has_ended

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.JobState
# httplib2, by which the launcher asks, gives up after 60 s.
_HOLD_S = 50.0
_LOOK_S = 0.5


def create(cloud: CloudState, request: types.CreateJobRequest, caller: Caller) -> types.Job:
    """Store and start a job; where one of its name is active, that one is the answer, as the service has it."""
    if cloud.dataflow is None:
        raise ServiceError("UNIMPLEMENTED", "nothing executes Dataflow jobs in this rehearsal")
    parent = _parent(cloud, request, "dataflow.jobs.create")
    job = types.Job(request.job)
    if not job.name:
        raise invalid("job.name", "is required.")
    for other in cloud.store.list(f"{parent}/jobs/"):
        if other.name == job.name and not has_ended(other):
            return types.Job(other)
    # Its form: the time, and a number.
    job.id = f"{time.strftime('%Y-%m-%d_%H_%M_%S', time.gmtime(cloud.clock.now()))}-{cloud.store.new_id()}"
    job.project_id, job.location = request.project_id, request.location
    job.current_state = _STATE.JOB_STATE_PENDING
    job.create_time = job.current_state_time = cloud.now()
    name = f"{parent}/jobs/{job.id}"
    cloud.store.add(name, job)
    cloud.dataflow.start(name)
    return types.Job(cloud.store.get(name))


def get(cloud: CloudState, request: types.GetJobRequest, caller: Caller) -> types.Job:
    """Return a job; over REST once it has ended, or after a while."""
    name = _name(cloud, request, "dataflow.jobs.get")
    try:
        job = cloud.store.get(name)
        deadline = time.monotonic() + _HOLD_S
        while caller.door == "rest" and not has_ended(job) and time.monotonic() < deadline:
            if cloud.stopping.is_set() or not caller.is_there():
                break
            job = cloud.store.wait(name, has_ended, _LOOK_S)
    except KeyError:
        raise not_found(name) from None
    return types.Job(job)


def update(cloud: CloudState, request: types.UpdateJobRequest, caller: Caller) -> types.Job:
    """End a job: the one change that is asked for here."""
    name = _name(cloud, request, "dataflow.jobs.updateContents")
    job = cloud.store.find(name)
    if job is None or cloud.dataflow is None:
        raise not_found(name)
    if request.job.requested_state != _STATE.JOB_STATE_CANCELLED:
        raise invalid("job.requested_state", "a rehearsal knows JOB_STATE_CANCELLED only")
    if not has_ended(job):
        cloud.dataflow.cancel(name)
    return types.Job(cloud.store.get(name))


def list_(cloud: CloudState, request: types.ListJobsRequest, caller: Caller) -> types.ListJobsResponse:
    """List jobs, the newest first, all on one page."""
    parent = _parent(cloud, request, "dataflow.jobs.list")
    jobs = [types.Job(job) for job in cloud.store.list(f"{parent}/jobs/")]
    kinds = types.ListJobsRequest.Filter
    if request.filter == kinds.ACTIVE:
        jobs = [job for job in jobs if not has_ended(job)]
    elif request.filter == kinds.TERMINATED:
        jobs = [job for job in jobs if has_ended(job)]
    return types.ListJobsResponse(jobs=[job for job in jobs if request.name in ("", job.name)])


def list_messages(
    cloud: CloudState, request: types.ListJobMessagesRequest, caller: Caller
) -> types.ListJobMessagesResponse:
    """List what a job has said, all on one page."""
    name = _name(cloud, request, "dataflow.messages.list")
    if cloud.store.find(name) is None or cloud.dataflow is None:
        raise not_found(name)
    since = request.start_time
    found = [one for one in cloud.dataflow.messages(name) if not since or one.time >= since]
    return types.ListJobMessagesResponse(
        job_messages=[one for one in found if one.message_importance >= request.minimum_importance]
    )


def metrics(cloud: CloudState, request: types.GetJobMetricsRequest, caller: Caller) -> types.JobMetrics:
    """Say that nothing was counted."""
    name = _name(cloud, request, "dataflow.metrics.get")
    if cloud.store.find(name) is None:
        raise not_found(name)
    return types.JobMetrics(metric_time=cloud.now())


def _parent(cloud: CloudState, request: Any, permission: str) -> str:
    return cloud.resolve_name(f"projects/{request.project_id}/locations/{request.location}", permission)


def _name(cloud: CloudState, request: Any, permission: str) -> str:
    return f"{_parent(cloud, request, permission)}/jobs/{request.job_id}"


JOBS = {"CreateJob": create, "GetJob": get, "UpdateJob": update, "ListJobs": list_}
MESSAGES = {"ListJobMessages": list_messages}
METRICS = {"GetJobMetrics": metrics}
