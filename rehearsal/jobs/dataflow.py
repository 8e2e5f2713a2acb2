"""Dataflow jobs of the local cloud: the staged pipeline of each is run by a process of its own (beam_job.py)."""

from __future__ import annotations

import sys
import threading
import zlib
from collections import deque
from typing import Any, Unpack

from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from rehearsal.jobs.lifecycle import JobRuns, Surroundings
from rehearsal.jobs.logbook import DATAFLOW_RESOURCE, severity_of
from rehearsal.machines.metadata import Identity
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.pipelines.task_details import moment
from rehearsal.resources.store import Store

# proto-plus declares an enum's members as numbers.
_STATE: Any = dataflow_v1beta3.JobState
_IMPORTANCE: Any = dataflow_v1beta3.JobMessageImportance
_TAIL_LINES = 40
# How often a job looks whether it is cancelled.
_LOOK_S = 0.2


class DataflowJobs(JobRuns):
    """Executes Dataflow jobs, and keeps what they say.

    Args:
        store: Has the jobs, as google.cloud.dataflow_v1beta3.Job under projects/P/locations/R/jobs/ID.
        surroundings: Those of JobRuns; without a network: this machine's own.
    """

    def __init__(self, store: Store, **surroundings: Unpack[Surroundings]) -> None:
        super().__init__("dataflow", store, **surroundings)
        self._messages: dict[str, list[Any]] = {}

    def _mark_cancelled(self, job: Any) -> None:
        job.requested_state, job.current_state = _STATE.JOB_STATE_CANCELLED, _STATE.JOB_STATE_CANCELLING

    def messages(self, name: str) -> list[Any]:
        """Return a job's messages, the oldest first."""
        with self._lock:
            return list(self._messages.get(name, []))

    def _fail(self, name: str, fault: str) -> None:
        # INTERNAL: a Dataflow job has no status code, its messages say it.
        self._end(name, "FAILED", f"INTERNAL: the rehearsal's own fault: {fault}")

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        job = self._store.get(name)
        folder = self._folder / name.rpartition("/")[2]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            uri = staged_pipeline(job)
        except ValueError as error:
            self._end(name, "FAILED", str(error))
            return
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        labels = {"job_id": job.id, "job_name": job.name, "region": job.location, "step_id": ""}

        def hear(line: str) -> None:
            tail.append(line)
            self._logs.write(DATAFLOW_RESOURCE, labels, line, severity_of(line), self._clock.now())

        environment = clean_environment(self.environment, {"HOME": str(folder), "TMPDIR": str(folder)})
        if cancelled.is_set():
            self._end(name, "CANCELLED", "the job was cancelled before it began")
            return
        command = [sys.executable, "-m", "rehearsal.jobs.beam_job", uri]
        host = (
            None
            if self.network is None
            else self.network.add(f"worker-{zlib.crc32(name.encode()):08x}", self._identity(job))
        )
        start = ProcessTree if host is None else host.start
        tree = start(command, environment=environment, folder=folder, on_line=hear)
        try:
            self._set_state(name, "RUNNING")
            self._say(name, "JOB_MESSAGE_BASIC", "Workers have started successfully.")
            while (code := tree.wait(_LOOK_S)) is None and not cancelled.is_set():
                pass
        finally:
            tree.kill()
            if host is not None:
                host.close()
        if cancelled.is_set():
            self._end(name, "CANCELLED", "the job was cancelled")
        elif code == 0:
            self._end(name, "DONE", "")
        else:
            self._end(name, "FAILED", "\n".join([f"the pipeline's process ended with exit code {code}", *tail]))

    def _identity(self, job: Any) -> Identity:
        """Return what the worker's metadata server says; workers are machines of the user's own project."""
        return Identity(
            project=job.project_id,
            project_number="0",
            zone=f"{job.location}-a",
            machine_type="n1-standard-1",
            email=job.environment.service_account_email or f"compute@{job.project_id}.iam.gserviceaccount.com",
            token=self._token,
        )

    def _end(self, name: str, state: str, message: str) -> None:
        if message:
            self._say(name, "JOB_MESSAGE_ERROR" if state == "FAILED" else "JOB_MESSAGE_BASIC", message)
        self._set_state(name, state)

    def _set_state(self, name: str, state: str) -> None:
        now = moment(self._clock.now())

        def change(job: Any) -> None:
            if state != "RUNNING" or job.current_state == _STATE.JOB_STATE_PENDING:
                job.current_state, job.current_state_time = _STATE[f"JOB_STATE_{state}"], now
            if state == "RUNNING":
                job.start_time = now

        self._store.update(name, change)

    def _say(self, name: str, importance: str, text: str) -> None:
        now = moment(self._clock.now())
        with self._lock:
            messages = self._messages.setdefault(name, [])
            messages.append(
                dataflow_v1beta3.JobMessage(
                    id=f"m{len(messages):06d}",
                    time=now,
                    message_text=text,
                    message_importance=_IMPORTANCE[importance],
                )
            )


def staged_pipeline(job: Any) -> str:
    """Return the gs:// URI of a job's pipeline.

    Raises:
        ValueError: The job names none: it is no job of a portable pipeline.
    """
    raw = dataflow_v1beta3.Job.pb(job).environment
    options = json_format.MessageToDict(raw.sdk_pipeline_options).get("options", {})
    uri = options.get("pipelineUrl", "")
    if not uri.startswith("gs://"):
        raise ValueError(
            f"environment.sdk_pipeline_options names no staged pipeline in a bucket (pipelineUrl: {uri!r})"
        )
    return str(uri)
