"""`shardline submit --wait` and `cancel`: waits for a submitted run, tries the next region, or cancels it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from components.record_run import TASKS, collect
from contracts import storage
from contracts.config.load import parse_config
from contracts.errors import EXIT_OK, EXIT_TRY_AGAIN, ShardlineError, TryAgain
from contracts.previous import RUN_NAME
from contracts.result import RUN_START_NAME, run_uri
from inspection.record import close_run
from pipelines.google import CALL_TIMEOUT_S, explained, first_line
from pipelines.rules import find_regions
from pipelines.runs import ENDED, Job, explain, failure_lines, find_jobs, line_of, read_tasks, refresh
from pipelines.submit import Notify, Ready, find_job, state_of, submit

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

POLL_S = 5.0
_PATIENT_S = 600.0
# resources.max_pending_s where it is unset.
_PENDING_S = 3600.0
# Vertex AI sets the error of a job about a minute after its end:
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
_ERROR_LIMIT_S = 90.0
# Vertex AI gives a CustomJob's containers 30 s; Dataflow takes minutes.
_CANCEL_LIMIT_S = 900.0
# How long the service has to end the jobs of a cancelled run by itself.
_PATIENCE_S = 60.0


def follow(job: PipelineJob, notify: Notify, *, limit_s: float | None = None, poll_s: float = POLL_S) -> Job | None:
    """Follow a run until it ends.

    Args:
        job: The run; brought up to date.
        notify: Receives each state change of a task, a job or the run.
        limit_s: Seconds that a CustomJob may wait for its first machines; None: no limit.
        poll_s: Polling interval in seconds.

    Returns:
        The job that exceeded limit_s; None: the run has ended.

    Raises:
        TryAgain: The service did not answer for ten minutes; the run continues.
    """
    shown: dict[str, str] = {}
    waiting_since: dict[str, float] = {}

    def report_change(name: str, state: str) -> None:
        if shown.get(name) != state:
            shown[name] = state
            notify(f"{datetime.now(UTC):%H:%M:%S}  {name}: {state}")

    while True:
        jobs = _read(job)
        for task in read_tasks(job):
            report_change(f"task {task.name}", task.state)
        for child in jobs:
            report_change(f"{child.kind} {child.id} of {child.task} in {child.region}", child.state)
            if child.waits:
                waiting_from_s = waiting_since.setdefault(child.id, time.monotonic())
                if limit_s is not None and time.monotonic() - waiting_from_s > limit_s:
                    return child
        report_change(f"run {job.name}", state_of(job))
        if state_of(job) in ENDED and not any(map(_may_get_error, jobs)):
            return None
        time.sleep(poll_s)


@retry(
    retry=retry_if_exception_type(TryAgain),
    stop=stop_after_delay(_PATIENT_S),
    wait=wait_exponential(max=30.0),
    reraise=True,
)
def _read(job: PipelineJob) -> list[Job]:
    """Refresh a run and return its jobs; retries for ten minutes."""
    refresh(job)
    return find_jobs(job)


def _may_get_error(job: Job) -> bool:
    """Return whether a CustomJob failed so recently that Vertex AI may not have set its error yet."""
    if job.kind != "CustomJob" or job.state != "failed" or job.error or job.ended_at is None:
        return False
    return timedelta() <= datetime.now(UTC) - job.ended_at < timedelta(seconds=_ERROR_LIMIT_S)


def submit_and_wait(ready: Ready, run_id: str, notify: Notify, announce: Notify, *, poll_s: float = POLL_S) -> int:
    """Submit a run to each region until one has machines, wait for its end; return the exit code.

    An interrupted command can be repeated: it finds and follows the existing job. Attempts in later regions reuse the
    outputs of earlier ones (shards, a profile, checkpoints).

    Args:
        ready: The line.
        run_id: Id of the run, in each region.
        notify: Receives changes of region, and why the run failed.
        announce: Receives the full name of each job.
        poll_s: Polling interval in seconds.
    """
    resources, cloud = ready.config.resources, ready.config.cloud
    regions = find_regions(ready.config)
    while True:
        region, *remaining = regions
        if any(find_job(run_id, cloud.project, later) is not None for later in remaining):
            # An earlier call of this command already moved on from this region.
            regions = remaining
            continue
        job = submit(ready, run_id, notify, region)
        announce(job.resource_name)
        # An earlier call of this command was interrupted while it cancelled the run in this region.
        was_given_up = state_of(job) == "cancelled" and any(child.started_at is None for child in find_jobs(job))
        # FLEX_START waits by design, and after the last region there is none to try.
        waits = remaining and resources.strategy != "FLEX_START"
        limit_s = (resources.max_pending_s or _PENDING_S) if waits else None
        waiting = follow(job, notify, limit_s=limit_s, poll_s=poll_s)
        if waiting is not None:
            notify(f"{waiting.kind} {waiting.id} got no machines in {region} in time; cancelling the run there")
            cancel(job, notify, poll_s=poll_s)
        if state_of(job) == "succeeded":
            return EXIT_OK
        failure = explain(job, read_tasks(job), find_jobs(job)) if state_of(job) == "failed" else None
        if not remaining or not (waiting or was_given_up or (failure and failure.kind == "stockout")):
            for line in failure_lines(failure) if failure else ["error: the run was cancelled"]:
                notify(line)
            notify(f"  see: {job._dashboard_uri()}")
            return failure.exit_code if failure else EXIT_TRY_AGAIN
        notify(f"no machines in {region}; the next region is {remaining[0]}")
        regions = remaining


def cancel(job: PipelineJob, notify: Notify, *, patience_s: float = _PATIENCE_S, poll_s: float = POLL_S) -> list[Job]:
    """Cancel a run and wait until it and its jobs have ended; no error if it has ended already.

    Vertex Pipelines cancels the tasks, and Google's launchers cancel the jobs that they started. Jobs that still run
    after `patience_s`, because their launcher died, are cancelled here.

    Args:
        job: The run; brought up to date.
        notify: Receives progress messages.
        patience_s: Seconds for the service to end the jobs by itself.
        poll_s: Polling interval in seconds.

    Returns:
        Every job of the run; all have ended.

    Raises:
        TryAgain: The run or one of its jobs still runs after 15 minutes.
    """
    from google.api_core.exceptions import FailedPrecondition

    began, cancelled_ids = time.monotonic(), set[str]()
    refresh(job)
    if state_of(job) not in ENDED:
        notify(f"run {job.name} in {job.location}: cancelling")
        # It may have ended meanwhile.
        with explained(f"cancelling run {job.name}"), suppress(FailedPrecondition):
            job.cancel()
    while True:
        refresh(job)
        jobs = find_jobs(job, complete=True)
        running = [child for child in jobs if not child.ended]
        if state_of(job) in ENDED and not running:
            _leave_record(job, notify)
            return jobs
        waited_s = time.monotonic() - began
        for child in running:
            if child.id not in cancelled_ids and (state_of(job) in ENDED or waited_s > patience_s):
                notify(f"{child.kind} {child.id} in {child.region} still runs: cancelling it")
                _cancel_job(job, child)
                cancelled_ids.add(child.id)
        if waited_s > _CANCEL_LIMIT_S:
            names = ", ".join(f"{child.kind} {child.id} in {child.region}" for child in running) or f"run {job.name}"
            raise TryAgain(
                f"still running after {_CANCEL_LIMIT_S:g} s: {names}\n"
                f"  to do: run the same command again, or see {job._dashboard_uri()}"
            )
        time.sleep(poll_s)


def _cancel_job(run: PipelineJob, job: Job) -> None:
    from google.api_core.exceptions import FailedPrecondition, NotFound
    from google.cloud.dataflow_v1beta3 import JobsV1Beta3Client

    with explained(f"cancelling {job.kind} {job.id}"), suppress(FailedPrecondition, NotFound):
        if job.kind == "CustomJob":
            job.resource.cancel()
            return
        place = {"project_id": run.project, "location": job.region, "job_id": job.id}
        request = {**place, "job": {"requested_state": "JOB_STATE_CANCELLED"}}
        JobsV1Beta3Client().update_job(request=request, timeout=CALL_TIMEOUT_S)


def _leave_record(job: PipelineJob, notify: Notify) -> None:
    """Write the record of a cancelled run whose record task did not run: without one it counts as running."""
    line = line_of(job)
    start_uri, record_uri = (storage.join(run_uri(line, job.name), name) for name in (RUN_START_NAME, RUN_NAME))
    try:
        if storage.exists(record_uri) or not storage.exists(start_uri):
            return
        config = parse_config(json.loads(storage.read_bytes(start_uri))["config"], where=start_uri)
        ended = {detail.task_name: detail for detail in job.gca_resource.job_detail.task_details}
        tasks = {name: ended[name] for name in TASKS if name in ended}
        record = collect(line, job.name, config, tasks)
        close_run(record.model_copy(update={"state": "interrupted", "error": "cancelled"}), line=line)
    except ShardlineError as error:
        notify(f"warning: no record of run {job.name}: {first_line(error)}")
