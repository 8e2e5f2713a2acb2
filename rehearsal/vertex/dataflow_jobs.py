"""Dataflow: jobs, messages and metrics, as used by Beam's DataflowRunner and `shardline submit`.

Jobs are stored as projects/NUMBER/locations/REGION/jobs/ID.

https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.locations.jobs
"""

from __future__ import annotations

import time
from typing import Any

from google.cloud.dataflow_v1beta3 import types

from rehearsal.errors import invalid_argument
from rehearsal.vertex.state import Caller, CloudState
from rehearsal.vertex.store import has_ended

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.JobState


def create(cloud: CloudState, request: types.CreateJobRequest, caller: Caller) -> types.Job:
    """Store and start a job; if a job with its name is active, return that, as the service does."""
    parent = _parent(cloud, request, "dataflow.jobs.create")
    job = types.Job(request.job)
    if not job.name:
        raise invalid_argument("job.name", "is required.")
    for existing in cloud.store.list(f"{parent}/jobs/"):
        if existing.name == job.name and not has_ended(existing):
            return types.Job(existing)
    # In the service's form: time and number.
    job.id = f"{time.strftime('%Y-%m-%d_%H_%M_%S', time.gmtime(cloud.clock.now()))}-{cloud.store.new_id()}"
    job.project_id, job.location = request.project_id, request.location
    job.current_state = _STATE.JOB_STATE_PENDING
    job.create_time = job.current_state_time = cloud.now()
    name = f"{parent}/jobs/{job.id}"
    cloud.store.add(name, job)
    cloud.dataflow.start(name)
    return types.Job(cloud.store.get(name))


def get(cloud: CloudState, request: types.GetJobRequest, caller: Caller) -> types.Job:
    """Return a job."""
    return types.Job(_find(cloud, request, "dataflow.jobs.get")[1])


def update(cloud: CloudState, request: types.UpdateJobRequest, caller: Caller) -> types.Job:
    """Cancel a job; other changes are not implemented."""
    name, job = _find(cloud, request, "dataflow.jobs.updateContents")
    if request.job.requested_state != _STATE.JOB_STATE_CANCELLED:
        raise invalid_argument("job.requested_state", "only JOB_STATE_CANCELLED can be requested here")
    if not has_ended(job):
        cloud.dataflow.cancel(name)
    return types.Job(cloud.store.get(name))


def list_(cloud: CloudState, request: types.ListJobsRequest, caller: Caller) -> types.ListJobsResponse:
    """List jobs, the newest first, all on one page."""
    parent, kinds = _parent(cloud, request, "dataflow.jobs.list"), types.ListJobsRequest.Filter
    jobs = [types.Job(job) for job in cloud.store.list(f"{parent}/jobs/") if request.name in ("", job.name)]
    if request.filter in (kinds.ACTIVE, kinds.TERMINATED):
        jobs = [job for job in jobs if has_ended(job) == (request.filter == kinds.TERMINATED)]
    return types.ListJobsResponse(jobs=jobs)


def list_messages(
    cloud: CloudState, request: types.ListJobMessagesRequest, caller: Caller
) -> types.ListJobMessagesResponse:
    """List the messages of a job, all on one page."""
    name, _ = _find(cloud, request, "dataflow.messages.list")
    start_time = request.start_time
    messages = [message for message in cloud.dataflow.messages(name) if not start_time or message.time >= start_time]
    return types.ListJobMessagesResponse(
        job_messages=[message for message in messages if message.message_importance >= request.minimum_importance]
    )


def metrics(cloud: CloudState, request: types.GetJobMetricsRequest, caller: Caller) -> types.JobMetrics:
    """Return empty metrics."""
    _find(cloud, request, "dataflow.metrics.get")
    return types.JobMetrics(metric_time=cloud.now())


def _parent(cloud: CloudState, request: Any, permission: str) -> str:
    return cloud.resolve_name(f"projects/{request.project_id}/locations/{request.location}", permission)


def _find(cloud: CloudState, request: Any, permission: str) -> tuple[str, Any]:
    """Return the full name and a copy of the job that a request names."""
    name = f"{_parent(cloud, request, permission)}/jobs/{request.job_id}"
    return name, cloud.find(name, permission)


JOBS = {"CreateJob": create, "GetJob": get, "UpdateJob": update, "ListJobs": list_}
MESSAGES = {"ListJobMessages": list_messages}
METRICS = {"GetJobMetrics": metrics}
