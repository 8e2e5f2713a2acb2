"""Pipeline jobs of the local Vertex, each executed by a process of its own (rehearsal/pipelines/pipeline.py)."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path
from typing import Any, Unpack

from google.cloud import aiplatform_v1
from google.protobuf import json_format
from google.rpc import status_pb2
from google.rpc.code_pb2 import CANCELLED, INTERNAL

from contracts.canonical import canonical
from rehearsal.jobs.lifecycle import JobRuns, Surroundings
from rehearsal.jobs.logbook import JOB_RESOURCE, severity_of
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.pipeline import PLACE_VARIABLE, ContainerPlace
from rehearsal.pipelines.reports import error_of, task_id
from rehearsal.pipelines.spec import normalise
from rehearsal.pipelines.task_details import job_of, moment, note_tasks
from rehearsal.resources.states import has_ended
from rehearsal.resources.store import Store

# proto-plus declares an enum's members as numbers.
State: Any = aiplatform_v1.PipelineState
# A launcher that is told to stop cancels what it has started, by a request; then it is killed.
CANCEL_GRACE_S = 10.0
# Until a job that was cancelled with the run has ended.
_JOB_END_S = 60.0
# How often a run's process is looked at for a cancellation.
_LOOK_S = 0.2
# A pipe holds as much.
_PIECE_BYTES = 1 << 16


class PipelineRuns(JobRuns):
    """Executes pipeline jobs.

    Args:
        store: Has the jobs, as google.cloud.aiplatform_v1.PipelineJob.
        project_numbers: By project id.
        cancel_resource: Ends what a cancelled run had started, by its name in the store: custom and Dataflow jobs.
        surroundings: Those of JobRuns, the environment that of the process that executes a pipeline; without a
            network: this machine's own.
    """

    def __init__(
        self,
        store: Store,
        *,
        project_numbers: Mapping[str, str] | None = None,
        cancel_resource: Callable[[str], None] | None = None,
        **surroundings: Unpack[Surroundings],
    ) -> None:
        super().__init__("pipeline", store, **surroundings)
        self.container_environment: Mapping[str, str] | None = None
        """Of tasks' containers; None: as of the process that executes a pipeline."""
        self._numbers = dict(project_numbers or {})
        self._cancel_resource = cancel_resource
        self._closing = False

    def _mark_cancelled(self, job: Any) -> None:
        job.state, job.update_time = State.PIPELINE_STATE_CANCELLING, moment(self._clock.now())

    def close(self) -> None:
        """Kill everything that still runs."""
        self._closing = True
        super().close()

    def _fail(self, name: str, fault: str) -> None:
        self._finish(name, "FAILED", error_of(INTERNAL, f"the rehearsal's own fault: {fault}"))

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        job = self._make_job(name)
        folder = self._folder / job.id
        replace(job, spec=normalise(job.spec)).write(folder)
        if cancelled.is_set():
            self._finish(name, "CANCELLED", error_of(CANCELLED, "the run was cancelled before it began"))
            return
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0) as stream:
            try:
                tree = self._start_child(folder, writer)
            finally:
                os.close(writer)
            threading.Thread(target=self._watch, args=(tree, cancelled), name=f"cancel {name}", daemon=True).start()
            try:
                last = self._read(name, stream)
                code = tree.wait()
            finally:
                tree.kill()
        if cancelled.is_set():
            self._end_resources(folder)
            self._finish(name, "CANCELLED", error_of(CANCELLED, "the run was cancelled"))
        elif last is None:
            said = f"the orchestrator ended with exit code {code}: see {folder / 'orchestrator.log'}"
            self._finish(name, "FAILED", error_of(INTERNAL, said))
        else:
            self._finish(name, last["state"], last["error"])

    def _watch(self, tree: ProcessTree, cancelled: threading.Event) -> None:
        """End a run's process when the run is cancelled."""
        while tree.wait(_LOOK_S) is None:
            if cancelled.is_set():
                tree.stop(0 if self._closing else CANCEL_GRACE_S)

    def _read(self, name: str, stream: FileIO) -> dict[str, Any] | None:
        """Note what a run's process reports until it has ended; return its last report, None where there is none."""
        self._store.update(name, self._begin)
        last, rest = None, b""
        # All that has come is one change of the job, which is copied each time. A line that a kill cut is none.
        while piece := stream.read(_PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            reports = [json.loads(line) for line in lines]
            self._note(name, reports)
            last = next((report for report in reports if report["report"] == "end"), last)
        return last

    def _start_child(self, folder: Path, writer: int) -> ProcessTree:
        log = folder / "orchestrator.log"

        def hear(line: str) -> None:
            with log.open("a") as stream:
                print(line, file=stream)

        command = [sys.executable, "-m", "rehearsal.pipelines.pipeline", str(folder.absolute()), str(writer)]
        containers = self.environment if self.container_environment is None else self.container_environment
        place = json.dumps(asdict(ContainerPlace(dict(containers), self._token())))
        environment = clean_environment(self.environment, {PLACE_VARIABLE: place})
        return ProcessTree(command, environment=environment, folder=folder, on_line=hear, pass_fds=[writer])

    def _begin(self, job: Any) -> None:
        if not has_ended(job) and job.state != State.PIPELINE_STATE_CANCELLING:
            job.state = State.PIPELINE_STATE_RUNNING
        job.start_time = job.update_time = moment(self._clock.now())

    def _note(self, name: str, reports: list[dict[str, Any]]) -> None:
        now = self._clock.now()
        tasks = [report for report in reports if report["report"] == "task"]
        if tasks:
            self._store.update(name, lambda job: note_tasks(job, tasks, now))
        for report in reports:
            if report["report"] == "log":
                labels = {
                    "job_id": job_of(name, report["id"]).rpartition("/")[2],
                    "task_name": "workerpool0-0",
                    "pipeline_job_id": name.rpartition("/")[2],
                    "pipeline_task_name": ".".join(report["path"]),
                }
                self._logs.write(JOB_RESOURCE, labels, report["text"], severity_of(report["text"]), now)

    def _finish(self, name: str, state: str, error: Mapping[str, Any] | None) -> None:
        now = moment(self._clock.now())

        def change(job: Any) -> None:
            for detail in job.job_detail.task_details:
                # What a killed orchestrator could not say.
                if not detail.end_time:
                    detail.state = aiplatform_v1.PipelineTaskDetail.State[state]
                    detail.end_time = now
                    if error:
                        detail.error = status_pb2.Status(**error)
            job.state = State[f"PIPELINE_STATE_{state}"]
            job.end_time = job.update_time = now
            if error:
                job.error = status_pb2.Status(**error)

        self._store.update(name, change)

    def _end_resources(self, folder: Path) -> None:
        """End the jobs that launchers of a run have started: those that were killed could not."""
        if self._cancel_resource is None:
            return
        for path in sorted((folder / "gcs").rglob("gcp_resources")):
            try:
                resources = json.loads(path.read_text()).get("resources", [])
            except ValueError:
                continue
            for resource in resources:
                # https://HOST/VERSION/projects/...
                _, found, rest = resource.get("resourceUri", "").partition("/projects/")
                project, _, place = rest.partition("/")
                # Launchers name the project as they were given it.
                name = f"projects/{self._numbers.get(project, project)}/{place}"
                if found and self._store.find(name) is not None:
                    self._cancel_resource(name)
                    self._store.wait(name, has_ended, _JOB_END_S)

    def _make_job(self, name: str) -> Job:
        message = self._store.get(name)
        raw = aiplatform_v1.PipelineJob.pb(message)
        project = name.split("/")[1]
        ids = {number: one for one, number in self._numbers.items()}
        config = message.runtime_config
        created = message.create_time.timestamp() if message.create_time else self._clock.now()
        runtime = json_format.MessageToDict(raw.runtime_config)
        return Job(
            name=name,
            # A number, of the whole name: names of scheduled runs end alike.
            uuid=str(task_id(name, ())),
            project=ids.get(project, project),
            project_number=self._numbers.get(project, project),
            location=name.split("/")[3],
            pipeline_root=config.gcs_output_directory,
            spec=canonical(json_format.MessageToDict(raw.pipeline_spec)),
            parameters=canonical(runtime.get("parameterValues", {})),
            create_time=_rfc3339(created),
            schedule_time=_rfc3339(self._store.scheduled_s.get(name, created)),
            labels=dict(message.labels),
            cache_folder=str((self._folder / "cache").absolute()),
            service_account=message.service_account,
        )


def _rfc3339(seconds: float) -> str:
    return moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
