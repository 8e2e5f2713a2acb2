"""The CustomJobs and Dataflow jobs that belong to a run.

A CustomJob is found by what its task says it started, by the run's folder in its arguments, and by the label of the
run: the launcher tells of its job in time, but nobody has promised when the service shows it. A
Dataflow job is found by what its task says it started, and where none does, by the labels that the shard stage gives
it: line and run. Jobs of others are never taken for the run's.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from contracts.result import LINE_LABEL, RUN_LABEL, run_label
from pipelines.google import explained, read_options
from pipelines.runs.tasks import ENDED, Task, error_text, state_of

_CUSTOM_JOB = re.compile(r"(projects/[^/]+/locations/([^/]+)/customJobs/([^/?]+))$")
_DATAFLOW_JOB = re.compile(r"projects/[^/]+/locations/[^/]+/jobs/[^/?]+$")
# Vertex Pipelines labels a run, and Google's launchers what they start for it.
_RUN_LABEL = "vertex-ai-pipelines-run-billing-id"
# The task that submits to Dataflow, and what its jobs are called (sharding/task.py).
_LAUNCHER, _JOB_PREFIX = "shard", "shardline-"
_NOT_BEGUN = frozenset({"PENDING", "SKIPPED", "NOT_TRIGGERED"})
_WAITING = frozenset({"QUEUED", "PENDING"})
_DATAFLOW_ENDED = frozenset({"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"})


# Vertex AI sets the error of a job about a minute after its end:
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
ERROR_LIMIT_S = 90.0


@dataclass(frozen=True)
class Job:
    """A job that a run started."""

    kind: str
    """CustomJob or Dataflow."""
    name: str
    """Full resource name."""
    region: str
    id: str
    state: str
    task: str
    """The task that started it; empty: not known."""
    display_name: str = ""
    error: str = ""
    error_code: int = 0
    """google.rpc.Code; 0: it has not failed."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in (_DATAFLOW_ENDED if self.kind == "Dataflow" else ENDED)

    @property
    def waits(self) -> bool:
        """Whether it is a CustomJob that never had machines: one that waits after a preemption has run before.

        Vertex AI keeps the time at which a job was first RUNNING. Dataflow queues by itself, for hours where told to.
        """
        return self.kind == "CustomJob" and self.state in _WAITING and self.started_at is None

    def may_tell_more(self, now: float) -> bool:
        """Whether it is a CustomJob that has failed so lately that its error need not be there yet.

        Args:
            now: Seconds since the epoch.
        """
        if self.kind != "CustomJob" or self.state != "FAILED" or self.error or self.ended_at is None:
            return False
        return 0 <= now - self.ended_at.timestamp() < ERROR_LIMIT_S

    @property
    def console(self) -> str:
        """Page of the job in the console."""
        project = self.name.split("/")[1]
        if self.kind == "Dataflow":
            return f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}?project={project}"
        return (
            f"https://console.cloud.google.com/ai/platform/locations/{self.region}/training/{self.id}?project={project}"
        )


class JobFinder:
    """Asks for the jobs of one run; its clients are made once."""

    def __init__(self, project: str, region: str, run_id: str) -> None:
        self._project = project
        self._region = region
        self._run_id = run_id
        self._clients: dict[str, Any] = {}
        self._dataflow_jobs: Any = None

    def find(self, pipeline: Any, tasks: Iterable[Task], *, complete: bool = False) -> list[Job]:
        """Return every CustomJob and Dataflow job of the run, by the time of their creation.

        Args:
            pipeline: The PipelineJob's message.
            tasks: Its tasks.
            complete: Whether it is an error when nobody may look for Dataflow jobs that no task names.
        """
        tasks = list(tasks)
        found: dict[str, Job] = {}
        for task in tasks:
            for uri in task.resources:
                job = self._read(uri, task.name)
                if job is not None:
                    found[job.id] = job
        # The containers of the pipeline's own tasks are CustomJobs too; the service ends them with their tasks.
        others = {name.rpartition("/")[2] for task in tasks for name in task.containers} | set(found)
        label = dict(pipeline.labels).get(_RUN_LABEL)
        root, own = pipeline.runtime_config.gcs_output_directory, f"/{self._run_id}/"
        for message in self._list_custom_jobs(pipeline.create_time):
            job = _custom_job(message, "")
            words = [word for pool in message.job_spec.worker_pool_specs for word in pool.container_spec.args]
            works_for = any(root in word and own in word for word in words)
            is_its = works_for or (label and message.labels.get(_RUN_LABEL) == label)
            if is_its and job.id not in others:
                found[job.id] = job
        launched = any(task.name.rpartition(".")[2] == _LAUNCHER and task.state not in _NOT_BEGUN for task in tasks)
        if launched and not any(job.kind == "Dataflow" for job in found.values()):
            found |= {job.id: job for job in self._list_dataflow_jobs(pipeline, complete=complete)}
        return sorted(found.values(), key=lambda job: job.created_at or datetime.max.replace(tzinfo=UTC))

    def cancel(self, job: Job) -> None:
        """Ask for the end of a job; one that has ended already is no error."""
        with explained(f"cancelling {job.name}", project=self._project):
            if job.kind == "Dataflow":
                place = _dataflow_place(job.name)
                self._dataflow().update_job(
                    request={**place, "job": {"requested_state": "JOB_STATE_CANCELLED"}}, **read_options()
                )
                return
            from google.api_core.exceptions import FailedPrecondition, NotFound

            with contextlib.suppress(FailedPrecondition, NotFound):
                self._client(job.region).cancel_custom_job(name=job.name, **read_options())

    def _list_custom_jobs(self, since: datetime | None) -> Iterator[Any]:
        chosen = f'create_time>="{since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}"' if since else ""
        parent = f"projects/{self._project}/locations/{self._region}"
        with explained(f"the jobs in {self._region}", project=self._project):
            yield from self._client(self._region).list_custom_jobs(
                request={"parent": parent, "filter": chosen}, **read_options()
            )

    def _list_dataflow_jobs(self, pipeline: Any, *, complete: bool) -> list[Job]:
        """Return the Dataflow jobs with the labels of line and run.

        The service filters by no label, and lists summaries.
        """
        from google.api_core.exceptions import Forbidden
        from google.cloud.dataflow_v1beta3 import JobView

        found = []
        since, line = pipeline.create_time, dict(pipeline.labels).get(LINE_LABEL)
        # Sharding runs in cloud.region, wherever the run is tried.
        region = _shard_region(pipeline) or self._region
        place = {"project_id": self._project, "location": region}
        with explained(f"the Dataflow jobs in {region}", project=self._project):
            try:
                for summary in self._dataflow().list_jobs(request=place, **read_options()):
                    if not summary.name.startswith(_JOB_PREFIX):
                        continue
                    if since and summary.create_time and summary.create_time < since:
                        continue
                    message = summary
                    if not message.labels:
                        request = {**place, "job_id": summary.id, "view": JobView.JOB_VIEW_ALL}
                        message = self._dataflow().get_job(request=request, **read_options())
                    labels = (message.labels.get(LINE_LABEL), message.labels.get(RUN_LABEL))
                    if labels == (line, run_label(self._run_id)):
                        name = f"projects/{self._project}/locations/{region}/jobs/{message.id}"
                        found.append(_dataflow_job(name, message, ""))
            except Forbidden:
                if complete:
                    raise
        return found

    def _read(self, uri: str, task: str) -> Job | None:
        """Return the job behind a URI; None: it is none of these two kinds, or it is gone."""
        from google.api_core.exceptions import NotFound

        if (match := _CUSTOM_JOB.search(uri)) is not None:
            name, region, _ = match.groups()
            with explained(name, project=self._project):
                try:
                    return _custom_job(self._client(region).get_custom_job(name=name, **read_options()), task)
                except NotFound:
                    return None
        if "dataflow" in uri and (match := _DATAFLOW_JOB.search(uri)) is not None:
            return self._read_dataflow(match.group(0), task)
        return None

    def _read_dataflow(self, name: str, task: str) -> Job | None:
        from google.api_core.exceptions import NotFound

        place = _dataflow_place(name)
        with explained(name, project=self._project):
            try:
                message = self._dataflow().get_job(request=place, **read_options())
            except NotFound:
                return None
        return _dataflow_job(name, message, task)

    def _client(self, region: str) -> Any:
        from pipelines.google import job_client

        if region not in self._clients:
            self._clients[region] = job_client(region)
        return self._clients[region]

    def _dataflow(self) -> Any:
        from pipelines.google import dataflow_client

        if self._dataflow_jobs is None:
            self._dataflow_jobs = dataflow_client()
        return self._dataflow_jobs


def _shard_region(pipeline: Any) -> str:
    """Return cloud.region of the configuration that the shard stage was given; empty: the run does not say."""
    text = dict(pipeline.runtime_config.parameter_values).get("shard_config", "{}")
    return str(json.loads(text).get("cloud", {}).get("region", ""))


def _dataflow_place(name: str) -> dict[str, str]:
    """Return a job's place as Dataflow's API takes it."""
    _, project, _, region, _, job_id = name.split("/")
    return {"project_id": project, "location": region, "job_id": job_id}


def _dataflow_job(name: str, message: Any, task: str) -> Job:
    place = _dataflow_place(name)
    return Job(
        kind="Dataflow",
        name=name,
        region=place["location"],
        id=place["job_id"],
        state=str(message.current_state.name).removeprefix("JOB_STATE_"),
        task=task,
        display_name=message.name,
        created_at=message.create_time or None,
        started_at=message.start_time or None,
    )


def _custom_job(message: Any, task: str) -> Job:
    match = _CUSTOM_JOB.search(message.name)
    assert match is not None, message.name
    return Job(
        kind="CustomJob",
        name=message.name,
        region=match.group(2),
        id=match.group(3),
        state=state_of(message),
        task=task,
        display_name=message.display_name,
        error=error_text(message.error),
        error_code=message.error.code,
        created_at=message.create_time or None,
        started_at=message.start_time or None,
        ended_at=message.end_time or None,
    )
