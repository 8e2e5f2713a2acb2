"""Executor of pipeline jobs, a thread each: states, cancelling, end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1
from google.protobuf import json_format
from google.rpc import status_pb2
from google.rpc.code_pb2 import INTERNAL

from contracts.canonical import canonical
from rehearsal.clock import to_datetime
from rehearsal.jobs.threads import JobThreads, Place
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.job import Job, TaskPath
from rehearsal.pipelines.spec import normalise
from rehearsal.pipelines.task_details import container_job, note_task
from rehearsal.pipelines.tasks import Tasks
from rehearsal.pipelines.values import Data
from rehearsal.pipelines.walk import Walk
from rehearsal.vertex.logs import JOB_RESOURCE, severity_of
from rehearsal.vertex.store import has_ended

# proto-plus declares an enum's members as numbers.
_STATE: Any = aiplatform_v1.PipelineState
# Time for a launcher to cancel its job after SIGTERM.
CANCEL_GRACE_S = 10.0
# Time for a cancelled job of a run to end.
_JOB_END_S = 60.0
# Polling interval of a run's cancellation.
_POLL_S = 0.2


class PipelineRuns(JobThreads):
    """Executes pipeline jobs (google.cloud.aiplatform_v1.PipelineJob).

    `project_numbers` maps project ids. `cancel_resource` cancels a job that a cancelled run started, by its name in
    the store.
    """

    def __init__(
        self, place: Place, *, project_numbers: Mapping[str, str], cancel_resource: Callable[[str], None]
    ) -> None:
        super().__init__(place)
        self._numbers, self._cancel_resource = dict(project_numbers), cancel_resource
        self._cache: dict[str, Data] = {}

    def _mark_cancelled(self, job: Any) -> None:
        job.state, job.update_time = _STATE.PIPELINE_STATE_CANCELLING, to_datetime(self.place.clock.now())

    def _fail(self, name: str, message: str) -> None:
        self._finish(name, "FAILED", {"code": INTERNAL, "message": message})

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        store, clock = self.place.store, self.place.clock
        job = self._make_job(name)
        folder = self.place.folder / str(job.task_id(()))
        folder.mkdir(parents=True)

        def report(path: TaskPath, state: str, **details: Any) -> None:
            number = job.task_id(path)
            store.update(name, lambda message: note_task(message, number, path, state, clock.now(), **details))

        def log(path: TaskPath, text: str) -> None:
            labels = {
                "job_id": container_job(name, job.task_id(path)).rpartition("/")[2],
                "task_name": "workerpool0-0",
                "pipeline_job_id": job.id,
                "pipeline_task_name": ".".join(path),
            }
            self.place.logs.write(JOB_RESOURCE, labels, text, severity_of(text), clock.now())

        store.update(name, self._begin)
        containers = Containers(job, replace(self.place, folder=folder), log)
        has_walked = threading.Event()

        def stop_containers() -> None:
            while not has_walked.wait(_POLL_S):
                if cancelled.is_set():
                    containers.cancel(0 if self._is_closed else CANCEL_GRACE_S)
                    return

        threading.Thread(target=stop_containers, name=f"cancel {name}", daemon=True).start()
        try:
            result = Walk(job, Tasks(job, containers, self._cache), report, cancelled).run()
        finally:
            has_walked.set()
        if cancelled.is_set():
            self._end_resources(folder)
        self._finish(name, result.state, result.error)

    def _begin(self, job: Any) -> None:
        if job.state == _STATE.PIPELINE_STATE_PENDING:
            job.state = _STATE.PIPELINE_STATE_RUNNING
        job.start_time = job.update_time = to_datetime(self.place.clock.now())

    def _finish(self, name: str, state: str, error: Mapping[str, Any]) -> None:
        now = to_datetime(self.place.clock.now())

        def change(job: Any) -> None:
            job.state = _STATE[f"PIPELINE_STATE_{state}"]
            job.end_time = job.update_time = now
            if error:
                job.error = status_pb2.Status(**error)

        self.place.store.update(name, change)

    def _end_resources(self, folder: Path) -> None:
        """Cancel the jobs that a run's launchers started, since killed launchers did not."""
        for path in sorted((folder / "gcs").rglob("gcp_resources")):
            try:
                resources = json.loads(path.read_text()).get("resources", [])
            except ValueError:
                continue
            for resource in resources:
                # https://HOST/VERSION/projects/PROJECT/..., with the project's id or number.
                _, separator, path_in_project = resource.get("resourceUri", "").partition("/projects/")
                project, _, tail = path_in_project.partition("/")
                name = f"projects/{self._numbers.get(project, project)}/{tail}"
                if separator and self.place.store.find(name) is not None:
                    self._cancel_resource(name)
                    self.place.store.wait(name, has_ended, _JOB_END_S)

    def _make_job(self, name: str) -> Job:
        message = self.place.store.get(name)
        raw = aiplatform_v1.PipelineJob.pb(message)
        number = name.split("/")[1]
        ids = {number: project for project, number in self._numbers.items()}
        created = message.create_time.timestamp() if message.create_time else self.place.clock.now()
        runtime = json_format.MessageToDict(raw.runtime_config)
        return Job(
            name=name,
            project=ids.get(number, number),
            pipeline_root=message.runtime_config.gcs_output_directory,
            spec=normalise(canonical(json_format.MessageToDict(raw.pipeline_spec))),
            parameters=canonical(runtime.get("parameterValues", {})),
            create_time=_rfc3339(created),
            schedule_time=_rfc3339(self.place.store.scheduled_s.get(name, created)),
            service_account=message.service_account,
            labels=dict(message.labels),
        )


def _rfc3339(seconds: float) -> str:
    return to_datetime(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
