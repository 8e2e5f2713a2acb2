"""Execution of Dataflow jobs: runs the staged pipeline of each in its own process (beam_job.py)."""

from __future__ import annotations

import sys
import threading
import zlib
from collections import deque
from typing import Any

from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from rehearsal.clock import to_datetime
from rehearsal.jobs.threads import JobThreads, Place
from rehearsal.machines.metadata import Identity, MetadataServer
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.vertex.logs import DATAFLOW_RESOURCE, severity_of

# proto-plus declares an enum's members as numbers.
_STATE: Any = dataflow_v1beta3.JobState
_IMPORTANCE: Any = dataflow_v1beta3.JobMessageImportance
_TAIL_LINES = 40
_POLL_S = 0.2


class DataflowJobs(JobThreads):
    """Executes Dataflow jobs (google.cloud.dataflow_v1beta3.Job), and stores their messages."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._messages: dict[str, list[Any]] = {}

    def messages(self, name: str) -> list[Any]:
        """Return a job's messages (google.cloud.dataflow_v1beta3.JobMessage), the oldest first."""
        with self._lock:
            return list(self._messages.get(name, []))

    def _mark_cancelled(self, job: Any) -> None:
        job.requested_state, job.current_state = _STATE.JOB_STATE_CANCELLED, _STATE.JOB_STATE_CANCELLING

    def _fail(self, name: str, message: str) -> None:
        # A Dataflow job has no status code, so the message has it.
        self._end(name, "FAILED", f"INTERNAL: {message}")

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        job = self.place.store.get(name)
        if cancelled.is_set():
            self._end(name, "CANCELLED", "the job was cancelled before it began")
            return
        try:
            uri = staged_pipeline(job)
        except ValueError as error:
            self._end(name, "FAILED", str(error))
            return
        folder = self.place.folder / name.rpartition("/")[2]
        folder.mkdir(parents=True, exist_ok=True)
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        labels = {"job_id": job.id, "job_name": job.name, "region": job.location, "step_id": ""}

        def log(line: str) -> None:
            tail.append(line)
            self.place.logs.write(DATAFLOW_RESOURCE, labels, line, severity_of(line), self.place.clock.now())

        # Workers are machines in the user's project.
        identity = Identity(
            project=job.project_id,
            project_number="0",
            zone=f"{job.location}-a",
            machine_type="n1-standard-1",
            email=job.environment.service_account_email or f"compute@{job.project_id}.iam.gserviceaccount.com",
            token=self.place.token,
        )
        metadata = MetadataServer(f"worker-{zlib.crc32(name.encode()):08x}", identity, self.place.on_refused)
        places = {"HOME": str(folder), "TMPDIR": str(folder), **metadata.environment}
        environment = clean_environment(self.place.environment, places)
        command = [sys.executable, "-m", "rehearsal.jobs.beam_job", uri]
        tree = ProcessTree(command, environment=environment, folder=folder, on_line=log)
        try:
            self._set_state(name, "RUNNING")
            self._add_message(name, "JOB_MESSAGE_BASIC", "Workers have started successfully.")
            while (code := tree.wait(_POLL_S)) is None and not cancelled.is_set():
                pass
        finally:
            tree.kill()
            metadata.close()
        if cancelled.is_set():
            self._end(name, "CANCELLED", "the job was cancelled")
        elif code == 0:
            self._end(name, "DONE", "")
        else:
            self._end(name, "FAILED", "\n".join([f"the pipeline's process ended with exit code {code}", *tail]))

    def _end(self, name: str, state: str, message: str) -> None:
        if message:
            self._add_message(name, "JOB_MESSAGE_ERROR" if state == "FAILED" else "JOB_MESSAGE_BASIC", message)
        self._set_state(name, state)

    def _set_state(self, name: str, state: str) -> None:
        now = to_datetime(self.place.clock.now())

        def change(job: Any) -> None:
            if state != "RUNNING" or job.current_state == _STATE.JOB_STATE_PENDING:
                job.current_state, job.current_state_time = _STATE[f"JOB_STATE_{state}"], now
            if state == "RUNNING":
                job.start_time = now

        self.place.store.update(name, change)

    def _add_message(self, name: str, importance: str, text: str) -> None:
        with self._lock:
            messages = self._messages.setdefault(name, [])
            message = dataflow_v1beta3.JobMessage(
                id=f"m{len(messages):06d}",
                time=to_datetime(self.place.clock.now()),
                message_text=text,
                message_importance=_IMPORTANCE[importance],
            )
            messages.append(message)


def staged_pipeline(job: Any) -> str:
    """Return the gs:// URI of a job's pipeline.

    Raises:
        ValueError: The job has none: it is not a portable pipeline.
    """
    raw = dataflow_v1beta3.Job.pb(job).environment
    options = json_format.MessageToDict(raw.sdk_pipeline_options).get("options", {})
    uri = options.get("pipelineUrl", "")
    if not uri.startswith("gs://"):
        text = f"environment.sdk_pipeline_options names no staged pipeline in a bucket (pipelineUrl: {uri!r})"
        raise ValueError(text)
    return str(uri)
