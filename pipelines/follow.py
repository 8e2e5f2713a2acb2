"""`shardline submit --wait` and `cancel`: a submitted run, followed to its end, region after region, or ended."""

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
from pipelines.submit import Ready, Say, find_job, state_of, submit

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

POLL_S = 5.0
_PATIENT_S = 600.0
# Vertex AI sets the error of a job about a minute after its end:
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
_ERROR_LIMIT_S = 90.0
# Vertex AI gives a CustomJob's containers 30 s; Dataflow takes minutes.
_CANCEL_LIMIT_S = 900.0
# How long the service has to end the jobs of a cancelled run by itself.
_PATIENCE_S = 60.0


def follow(job: PipelineJob, say: Say, *, limit_s: float | None = None, poll_s: float = POLL_S) -> Job | None:
    """Follow a run until it ends.

    Args:
        job: The run; brought up to date.
        say: Told each change of a task, a job or the run.
        limit_s: Seconds that a CustomJob may wait for its first machines; None: for ever.
        poll_s: Seconds between two looks.

    Returns:
        The job that has waited for too long; None: the run has ended.

    Raises:
        TryAgain: The service has not answered for ten minutes; the run goes on.
    """
    shown: dict[str, str] = {}
    waiting_since: dict[str, float] = {}

    def tell(what: str, state: str) -> None:
        if shown.get(what) != state:
            shown[what] = state
            say(f"{datetime.now(UTC):%H:%M:%S}  {what}: {state}")

    while True:
        jobs = _read(job)
        for task in read_tasks(job):
            tell(f"task {task.name}", task.state)
        for each in jobs:
            tell(f"{each.kind} {each.id} of {each.task} in {each.region}", each.state)
            if each.waits:
                since = waiting_since.setdefault(each.id, time.monotonic())
                if limit_s is not None and time.monotonic() - since > limit_s:
                    return each
        tell(f"run {job.name}", state_of(job))
        if state_of(job) in ENDED and not any(map(_may_tell_more, jobs)):
            return None
        time.sleep(poll_s)


@retry(
    retry=retry_if_exception_type(TryAgain),
    stop=stop_after_delay(_PATIENT_S),
    wait=wait_exponential(max=30.0),
    reraise=True,
)
def _read(job: PipelineJob) -> list[Job]:
    """Read a run again and return its jobs; a service that does not answer is asked again for ten minutes."""
    refresh(job)
    return find_jobs(job)


def _may_tell_more(job: Job) -> bool:
    """Whether it is a CustomJob that has failed so lately that its error need not be there yet."""
    if job.kind != "CustomJob" or job.state != "failed" or job.error or job.ended_at is None:
        return False
    return timedelta() <= datetime.now(UTC) - job.ended_at < timedelta(seconds=_ERROR_LIMIT_S)


def submit_and_wait(ready: Ready, run_id: str, say: Say, tell: Say, *, poll_s: float = POLL_S) -> int:
    """Submit a run to region after region until one has machines for it, follow it to its end; return the exit code.

    A try that is there already is found and followed, so the same command goes on where it was interrupted. What a try
    has finished (shards, a profile, checkpoints) the next one finds and reuses.

    Args:
        ready: The line.
        run_id: Id of the run, in each region.
        say: Told what happens between two regions, and why the run failed.
        tell: Told the full name of each job.
        poll_s: Seconds between two looks.
    """
    resources, cloud = ready.config.resources, ready.config.cloud
    regions = find_regions(ready.config)
    while True:
        region, *others = regions
        if any(find_job(run_id, cloud.project, other) is not None for other in others):
            # This command, interrupted before, had given this region up.
            regions = others
            continue
        job = submit(ready, run_id, say, region)
        tell(job.resource_name)
        # This command, interrupted while it gave this region up.
        was_given_up = state_of(job) == "cancelled" and any(each.started_at is None for each in find_jobs(job))
        # FLEX_START waits by design, and in the last region there is nothing to give up for.
        limit_s = resources.max_pending_s if others and resources.strategy != "FLEX_START" else None
        waiting = follow(job, say, limit_s=limit_s, poll_s=poll_s)
        if waiting is not None:
            say(f"{waiting.kind} {waiting.id} got no machines in {region} in time; cancelling the run there")
            cancel(job, say, poll_s=poll_s)
        if state_of(job) == "succeeded":
            return EXIT_OK
        failure = explain(job, read_tasks(job), find_jobs(job)) if state_of(job) == "failed" else None
        if not others or not (waiting or was_given_up or (failure and failure.kind == "stockout")):
            for line in failure_lines(failure) if failure else ["error: the run was cancelled"]:
                say(line)
            say(f"  see: {job._dashboard_uri()}")
            return failure.exit_code if failure else EXIT_TRY_AGAIN
        say(f"no machines in {region}; the next region is {others[0]}")
        regions = others


def cancel(job: PipelineJob, say: Say, *, patience_s: float = _PATIENCE_S, poll_s: float = POLL_S) -> list[Job]:
    """Cancel a run and wait until it and its jobs have ended; one that has ended already is no error.

    Vertex Pipelines cancels the tasks, and Google's launchers the jobs that they started, but each of them may be gone
    itself: what still runs after a while is cancelled here.

    Args:
        job: The run; brought up to date.
        say: Told in a line what happens.
        patience_s: Seconds for the service to end the jobs by itself.
        poll_s: Seconds between two looks.

    Returns:
        Every job of the run; all have ended.

    Raises:
        TryAgain: Something of it still runs after a quarter of an hour.
    """
    from google.api_core.exceptions import FailedPrecondition

    began, asked = time.monotonic(), set[str]()
    refresh(job)
    if state_of(job) not in ENDED:
        say(f"run {job.name} in {job.location}: cancelling")
        # It may have ended meanwhile.
        with explained(f"cancelling run {job.name}"), suppress(FailedPrecondition):
            job.cancel()
    while True:
        refresh(job)
        jobs = find_jobs(job, complete=True)
        running = [each for each in jobs if not each.ended]
        if state_of(job) in ENDED and not running:
            _leave_record(job, say)
            return jobs
        waited_s = time.monotonic() - began
        for each in running:
            if each.id not in asked and (state_of(job) in ENDED or waited_s > patience_s):
                say(f"{each.kind} {each.id} in {each.region} still runs: cancelling it")
                _cancel_job(job, each)
                asked.add(each.id)
        if waited_s > _CANCEL_LIMIT_S:
            left = ", ".join(f"{each.kind} {each.id} in {each.region}" for each in running) or f"run {job.name}"
            raise TryAgain(
                f"after {_CANCEL_LIMIT_S:g} s there still runs: {left}\n"
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


def _leave_record(job: PipelineJob, say: Say) -> None:
    """Write the record of a run whose own task did not: else it counts as one that works."""
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
        say(f"warning: no record of run {job.name}: {first_line(error)}")
