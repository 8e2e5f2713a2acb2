"""JobService: custom jobs (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs).

Get calls of Google's launchers wait for the job's end: launchers poll every 20 s, so immediate answers would delay each
end. Once per job, Get returns a running job.
"""

from __future__ import annotations

import time
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty

from rehearsal.errors import not_found
from rehearsal.vertex.checks import check_custom_job
from rehearsal.vertex.listing import lister
from rehearsal.vertex.state import Caller, CloudState
from rehearsal.vertex.store import has_ended

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.JobState
_LAUNCHER = "google-cloud-pipeline-components"
# Longest wait of a Get, and of the first one for a running job: launchers log only after they have seen RUNNING.
_MAX_WAIT_S, _MAX_FIRST_WAIT_S = 600.0, 120.0
# Polling interval of the caller's connection.
_POLL_S = 0.5


def create(cloud: CloudState, request: types.CreateCustomJobRequest, caller: Caller) -> types.CustomJob:
    """Check, store and start a custom job."""
    parent = cloud.resolve_name(request.parent, "aiplatform.customJobs.create")
    job = types.CustomJob(request.custom_job)
    check_custom_job(job)
    job.name, job.state = f"{parent}/customJobs/{cloud.store.new_id()}", _STATE.JOB_STATE_PENDING
    job.create_time = job.update_time = cloud.now()
    cloud.store.add(job.name, job)
    cloud.custom_jobs.start(job.name)
    return types.CustomJob(cloud.store.get(job.name))


def get(cloud: CloudState, request: types.GetCustomJobRequest, caller: Caller) -> types.CustomJob:
    """Return a custom job. Calls of launchers wait for its end, or until it has run for two minutes."""
    name = cloud.resolve_name(request.name, "aiplatform.customJobs.get")
    try:
        job = cloud.store.get(name)
        if _LAUNCHER in caller.user_agent:
            limit_s = _MAX_WAIT_S if name in cloud.seen_running else _MAX_FIRST_WAIT_S
            began = time.monotonic()
            while not has_ended(job):
                waited_s, is_running = time.monotonic() - began, job.state == _STATE.JOB_STATE_RUNNING
                if waited_s > _MAX_WAIT_S or (is_running and waited_s > limit_s):
                    break
                if cloud.stopping.is_set() or not caller.is_there():
                    break
                job = cloud.store.wait(name, has_ended, _POLL_S)
            if job.state == _STATE.JOB_STATE_RUNNING:
                cloud.seen_running.add(name)
    except KeyError:
        raise not_found(name) from None
    return types.CustomJob(job)


def cancel(cloud: CloudState, request: types.CancelCustomJobRequest, caller: Caller) -> Empty:
    """Cancel a custom job; ended jobs stay unchanged."""
    job = cloud.find(request.name, "aiplatform.customJobs.cancel")
    if not has_ended(job):
        cloud.custom_jobs.cancel(job.name)
    return Empty()


METHODS = {
    "CreateCustomJob": create,
    "GetCustomJob": get,
    "ListCustomJobs": lister(types.CustomJob, "customJobs", types.ListCustomJobsResponse, "custom_jobs"),
    "CancelCustomJob": cancel,
}
