"""`shardline status`: state of a submitted run and its jobs, and the cause of a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from components.record_run import TASKS
from contracts.config import STAGES, RunConfig
from contracts.errors import EXIT_FAULT, EXIT_USER_ERROR, ConfigError, ShardlineError
from contracts.goodput import count_stops
from contracts.result import LINE_LABEL, PIPELINE_FOLDER, RUN_LABEL, run_label
from inspection.find import LATEST, find_place, read_start
from inspection.stages import find_errors, find_last_error, find_output, read_warnings
from inspection.training import read_goodput
from pipelines.google import CALL_TIMEOUT_S, Cause, explained, find_cause, first_line, import_sdk
from pipelines.rules import find_regions
from pipelines.submit import find_job, state_of

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

ENDED = frozenset({"succeeded", "failed", "cancelled", "skipped", "not_triggered", "expired", "partially_succeeded"})
# Vertex Pipelines sets this label on a run, and Google's launchers on the run's CustomJobs.
_BILLING_LABEL = "vertex-ai-pipelines-run-billing-id"
_DATAFLOW_ENDED = frozenset({"done", "failed", "cancelled", "updated", "drained"})
_JOB_PREFIX = "shardline-"


@dataclass(frozen=True)
class Task:
    """A task of a run; times are None until they are known."""

    name: str
    state: str
    error: str
    started_at: datetime | None
    ended_at: datetime | None
    containers: tuple[str, ...]
    """Full names of the CustomJobs that ran its container, one per attempt."""


@dataclass(frozen=True)
class Job:
    """A CustomJob or Dataflow job that a run started."""

    kind: str
    id: str
    region: str
    task: str
    state: str
    error: str
    console: str
    created_at: datetime | None
    started_at: datetime | None
    """When it first had machines, also if it waits again after a preemption."""
    ended_at: datetime | None
    resource: Any = None
    """The SDK's object of a CustomJob."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in (_DATAFLOW_ENDED if self.kind == "Dataflow job" else ENDED)

    @property
    def waits(self) -> bool:
        """Whether it is a CustomJob that never had machines. Dataflow has its own queue, for up to hours."""
        return self.kind == "CustomJob" and self.state in ("queued", "pending") and self.started_at is None


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    task: str
    """The task that failed first; empty: none did."""
    service_message: str
    """The service's error message about the task, its job, or the run."""
    stage_message: str
    """Error message of the stage, from its error.json; empty: there is none."""
    cause: str
    """Description of the likely cause; empty: unknown."""
    kind: str
    """Name of the cause; empty: unknown."""
    todo: str
    exit_code: int


def find_runs(run: str, *, config: RunConfig | None = None) -> list[PipelineJob]:
    """Return the PipelineJobs of a run: one per region in which it was tried, in the order of the regions.

    Args:
        run: Id or full resource name of a PipelineJob; the folder of a run, or of a line for its last submission;
            LINE:latest with a configuration.
        config: Configuration with project, regions and line.

    Raises:
        ConfigError: There is no such run, or project and region cannot be known.
    """
    line, places = "", [("", "")]
    if not run.startswith("projects/") and ("/" in run or run.endswith(LATEST)):
        run = _job_of(run if config is None or "/" in run else f"{config.run.root}/{run}")
    elif not run.startswith("projects/"):
        regions = [region for region in find_regions(config) if region] if config is not None else []
        if config is None or not config.cloud.project or not regions:
            raise ConfigError(
                f"{run}: its project and region are not known",
                allowed="projects/PROJECT/locations/REGION/pipelineJobs/ID, or an id with its configuration",
                todo="add --config CONFIG",
            )
        line, places = config.run.name, [(config.cloud.project, region) for region in regions]
    jobs = [job for place in places if (job := find_job(run, *place)) is not None]
    jobs = [job for job in jobs if line in ("", job.labels.get(LINE_LABEL))]
    if not jobs:
        searched = ", ".join(f"project {name}, region {location}" for name, location in places if name)
        raise ConfigError(
            f"there is no run {run}{' of line ' + line if line else ''}{' in ' + searched if searched else ''}",
            allowed="the id of a run that was submitted there",
            todo="check id, project and region; `shardline submit` prints all three",
        )
    return jobs


def _job_of(run: str) -> str:
    """Return the resource name of the job that a run's folder names."""
    arguments = read_start(find_place(run)).get("arguments") or {}
    if not (job := str(arguments.get("job", ""))):
        raise ConfigError(
            f"{run} is a run of this machine",
            allowed="runs of Vertex AI",
            todo=f"see: shardline inspect {run} (or report); its page has the logs",
        )
    return job


def line_of(job: PipelineJob) -> str:
    """Return the URI of a run's line."""
    return str(job.gca_resource.runtime_config.gcs_output_directory).removesuffix(f"/{PIPELINE_FOLDER}")


def read_tasks(job: PipelineJob) -> list[Task]:
    """Return the tasks of a run since the last refresh, in the order of the line.

    Groups of tasks (the pipeline itself) are omitted; a task from KFP's cache is `reused`.
    """
    names = [*TASKS, "record"]
    details = sorted(
        job.gca_resource.job_detail.task_details,
        key=lambda detail: names.index(detail.task_name) if detail.task_name in names else len(names),
    )
    parents = {detail.parent_task_id for detail in details}
    tasks = []
    for detail in details:
        if detail.task_id in parents:
            continue
        container = detail.executor_detail.container_detail
        tasks.append(
            Task(
                name=detail.task_name,
                state="reused" if (state := state_of(detail)) == "skipped" else state.replace("_", " "),
                error=detail.error.message,
                started_at=detail.start_time or None,
                ended_at=detail.end_time or None,
                containers=tuple(filter(None, (*container.failed_main_jobs, container.main_job))),
            )
        )
    return tasks


def find_jobs(job: PipelineJob, *, complete: bool = False) -> list[Job]:
    """Return the CustomJobs and Dataflow jobs that a run started, the oldest first.

    Args:
        job: The run.
        complete: Whether to raise if the account may not list Dataflow jobs.
    """
    children = [*_find_custom_jobs(job), *_find_dataflow_jobs(job, complete=complete)]
    return sorted(children, key=lambda child: child.created_at or datetime.max.replace(tzinfo=UTC))


def _find_custom_jobs(job: PipelineJob) -> Iterator[Job]:
    message = job.gca_resource
    container_ids = {name.rpartition("/")[2] for task in read_tasks(job) for name in task.containers}
    created_after = message.create_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with explained(f"the jobs in {job.location}"):
        started = import_sdk().CustomJob.list(
            filter=f'create_time>="{created_after}"', project=job.project, location=job.location
        )
    for custom_job in started:
        child = custom_job.gca_resource
        label = child.labels.get(_BILLING_LABEL)
        # The container of a plain task is also a CustomJob; the service ends it with its task.
        if custom_job.name in container_ids or not label or label != message.labels.get(_BILLING_LABEL):
            continue
        yield Job(
            kind="CustomJob",
            id=custom_job.name,
            region=job.location,
            task=child.display_name.removeprefix(f"{message.display_name}-"),
            state=state_of(child),
            error=child.error.message,
            console=f"https://console.cloud.google.com/ai/platform/locations/{job.location}/training/{custom_job.name}"
            f"?project={job.project}",
            created_at=child.create_time or None,
            started_at=child.start_time or None,
            ended_at=child.end_time or None,
            resource=custom_job,
        )


def _find_dataflow_jobs(job: PipelineJob, *, complete: bool) -> Iterator[Job]:
    """Yield the Dataflow jobs with the labels of line and run; the service has no filter by label."""
    from google.api_core.exceptions import Forbidden
    from google.cloud import dataflow_v1beta3 as dataflow

    message = job.gca_resource
    if not any(task.name == "shard" and task.started_at for task in read_tasks(job)):
        return
    # Sharding always runs in cloud.region.
    config = json.loads(dict(message.runtime_config.parameter_values).get("shard_config", "{}"))
    region = str(config.get("cloud", {}).get("region", "")) or job.location
    labels = {LINE_LABEL: message.labels.get(LINE_LABEL), RUN_LABEL: run_label(job.name)}.items()
    place = {"project_id": job.project, "location": region}
    with explained(f"the Dataflow jobs in {region}"):
        client = dataflow.JobsV1Beta3Client()
        try:
            for summary in client.list_jobs(request=place, timeout=CALL_TIMEOUT_S):
                is_older = summary.create_time and summary.create_time < message.create_time
                if is_older or not summary.name.startswith(_JOB_PREFIX):
                    continue
                # List responses are summaries, mostly without labels.
                request = {**place, "job_id": summary.id, "view": dataflow.JobView.JOB_VIEW_ALL}
                child = summary if summary.labels else client.get_job(request=request, timeout=CALL_TIMEOUT_S)
                if labels <= dict(child.labels).items():
                    yield Job(
                        kind="Dataflow job",
                        id=child.id,
                        region=region,
                        task="shard",
                        state=child.current_state.name.lower().removeprefix("job_state_"),
                        error="",
                        console=f"https://console.cloud.google.com/dataflow/jobs/{region}/{child.id}"
                        f"?project={job.project}",
                        created_at=child.create_time or None,
                        started_at=child.start_time or None,
                        ended_at=None,
                    )
        except Forbidden:
            if complete:
                raise


def explain(job: PipelineJob, tasks: Sequence[Task], jobs: Sequence[Job]) -> Failure:
    """Return why a run failed: errors of the task and of the stage, and the likely cause from both."""
    failed = next((task for task in tasks if task.state == "failed"), None)
    name = failed.name if failed else ""
    document = None
    # The bucket itself may have failed.
    with suppress(ShardlineError):
        document = find_errors(line_of(job), job.name).get(name)
        if document is None and name in STAGES:
            document = find_last_error(line_of(job), name, job.name)
    job_errors = [child.error for child in jobs if child.task == name and child.error]
    messages = [*job_errors, failed.error if failed else "", job.gca_resource.error.message]
    of_stage = [document.message] if document is not None and document.exit_code == EXIT_FAULT else []
    cause: Cause | None = find_cause([*messages, *of_stage])
    if document is not None and document.exit_code == EXIT_USER_ERROR:
        # A stage's own message about a user error is more precise than a pattern.
        cause = None
    code = cause.exit_code if cause else document.exit_code if document else EXIT_FAULT
    logs = f"see `shardline logs {job.resource_name}{' --task ' + name if name else ''}`"
    return Failure(
        task=name,
        service_message=next(filter(None, messages), ""),
        stage_message=document.message if document else "",
        cause=cause.cause if cause else "",
        kind=cause.kind if cause else "",
        todo=cause.todo if cause else "" if document and "to do:" in document.message else logs,
        exit_code=code,
    )


def read_status(job: PipelineJob) -> dict[str, Any]:
    """Return the state of a run since the last refresh, as JSON values."""
    tasks, jobs, line = read_tasks(job), find_jobs(job), line_of(job)
    goodput, note, warnings = None, "", []
    try:
        goodput = read_goodput(line, job.name)
        shards_uri = find_output(line, job.name, "shard")
        warnings = read_warnings(shards_uri) if shards_uri is not None else []
    except ShardlineError as error:
        # Without the bucket, the answers of the services are still shown.
        note = f"the training's goodput is unavailable: {first_line(error)}"
    message = job.gca_resource
    return {
        "run": job.resource_name,
        "state": state_of(job),
        "console": job._dashboard_uri(),
        "line": line,
        "created_at": message.create_time.isoformat(timespec="seconds"),
        "ended_at": message.end_time.isoformat(timespec="seconds") if message.end_time else None,
        "tasks": [_values(task) for task in tasks],
        "jobs": [_values(child) for child in jobs],
        "training": goodput.model_dump(mode="json") if goodput else None,
        "stops": count_stops(goodput) if goodput else "",
        "note": note,
        "warnings": warnings,
        "failure": asdict(explain(job, tasks, jobs)) if state_of(job) == "failed" else None,
    }


def _values(entry: Task | Job) -> dict[str, Any]:
    """Return a task or a job as JSON values, with its duration in seconds."""
    values = {name: value for name, value in vars(entry).items() if name != "resource"}
    took = (entry.ended_at - entry.started_at).total_seconds() if entry.started_at and entry.ended_at else None
    times = {name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)}
    return {**values, **times, "took_s": took}


def status_lines(status: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a status: the run, its tasks, its jobs, its training, and why it failed."""
    name = status["run"].rpartition("/")[2]
    yield f"run {name}: {status['state']}"
    yield f"  {status['console']}"
    ended = f", ended {status['ended_at']}" if status["ended_at"] else ""
    yield f"  line {status['line']}, created {status['created_at']}{ended}"
    for task in status["tasks"]:
        took = "" if task["took_s"] is None else f"  {task['took_s']:.1f} s"
        attempts = f"  {len(task['containers'])} attempts" if len(task["containers"]) > 1 else ""
        yield f"  {task['name']:<12} {task['state']}{took}{attempts}"
    for job in status["jobs"]:
        yield f"{job['kind']} {job['id']} of {job['task']}: {job['state']} in {job['region']}"
        yield f"  {job['console']}"
    if (trained := status["training"]) is not None:
        yield (
            f"training: {trained['steps']} steps, {trained['attempts']} attempts and {trained['starts']} starts, "
            f"{status['stops']}, {trained['goodput_percent']:.1f} % goodput"
        )
    yield from filter(None, [status["note"], *(f"warning: {text}" for text in status["warnings"])])
    if status["failure"] is not None:
        yield from failure_lines(Failure(**status["failure"]))


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield the lines that explain a failure."""
    subject = f"task {failure.task}" if failure.task else "the run"
    yield f"error: {subject} failed: {failure.service_message or 'no error message'}"
    if failure.stage_message:
        yield from ("  the stage says: " + failure.stage_message).splitlines()
    if failure.cause:
        yield f"  likely cause: {failure.cause} ({failure.kind})"
    if failure.todo:
        yield f"  to do: {failure.todo}"


def refresh(job: PipelineJob) -> None:
    """Read the current state of a run from the service."""
    with explained(f"run {job.name}"):
        _ = job.state
