"""Dataflow jobs of the local cloud: the staged pipeline of each is run by a process of its own (beam_job.py)."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from rehearsal.jobs.logbook import DATAFLOW_RESOURCE, Clock, LogBook, severity_of
from rehearsal.machines.processes import Tree, clean_environment
from rehearsal.pipelines.task_details import moment
from rehearsal.resources.store import Store

# proto-plus declares an enum's members as numbers.
_STATE: Any = dataflow_v1beta3.JobState
_IMPORTANCE: Any = dataflow_v1beta3.JobMessageImportance
_TAIL_LINES = 40


class DataflowJobs:
    """Executes Dataflow jobs (rehearsal.resources.store.Runs), and keeps what they say.

    Args:
        store: Has the jobs, as google.cloud.dataflow_v1beta3.Job under projects/P/locations/R/jobs/ID.
        folder: For everything that is written on this machine.
        logs: Gets what workers print.
        clock: Of the rehearsed world.
        environment: Of the workers; may be set later, before the first job.
    """

    def __init__(
        self,
        store: Store,
        *,
        folder: Path,
        logs: LogBook,
        clock: Clock,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._folder, self._logs, self._clock = store, folder, logs, clock
        self.environment: Mapping[str, str] = environment or {}
        self._trees: dict[str, Tree] = {}
        self._threads: list[threading.Thread] = []
        self._messages: dict[str, list[Any]] = {}
        self._cancelled: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        self.failures: list[str] = []
        """Faults of the rehearsal itself, as tracebacks."""

    def start(self, name: str) -> None:
        """Begin to execute the job of this name."""
        thread = threading.Thread(target=self._run, args=(name,), name=f"dataflow {name}", daemon=True)
        with self._lock:
            self._threads.append(thread)
            # Before anybody can join it.
            thread.start()

    def cancel(self, name: str) -> None:
        """End it; its state becomes cancelled once nothing of it runs any more."""

        def change(job: Any) -> None:
            if not has_ended(job):
                job.requested_state, job.current_state = _STATE.JOB_STATE_CANCELLED, _STATE.JOB_STATE_CANCELLING

        self._store.update(name, change)
        with self._lock:
            self._cancelled.add(name)
            tree = self._trees.get(name)
        if tree is not None:
            threading.Thread(target=tree.kill, name=f"cancel {name}", daemon=True).start()

    def messages(self, name: str) -> list[Any]:
        """Return a job's messages, the oldest first."""
        with self._lock:
            return list(self._messages.get(name, []))

    def close(self) -> None:
        """Kill everything that still runs."""
        with self._lock:
            self._closed = True
            trees, threads = list(self._trees.values()), list(self._threads)
        for tree in trees:
            tree.kill()
        for thread in threads:
            thread.join()

    def _run(self, name: str) -> None:
        try:
            self._execute(name)
        except Exception:  # noqa: BLE001 - a thread's entry: a fault of ours fails the job, and is told
            self.failures.append(traceback.format_exc())
            with self._lock:
                tree = self._trees.pop(name, None)
            if tree is not None:
                tree.kill()
            with contextlib.suppress(KeyError):
                # INTERNAL: a Dataflow job has no status code, its messages say it.
                self._end(name, "FAILED", f"INTERNAL: the rehearsal's own fault: {self.failures[-1]}")

    def _execute(self, name: str) -> None:
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
        with self._lock:
            if name not in self._cancelled and not self._closed:
                self._trees[name] = Tree(
                    [sys.executable, "-m", "rehearsal.jobs.beam_job", uri],
                    environment=environment,
                    folder=folder,
                    on_line=hear,
                )
            tree = self._trees.get(name)
        if tree is None:
            self._end(name, "CANCELLED", "the job was cancelled before it began")
            return
        self._set_state(name, "RUNNING")
        self._say(name, "JOB_MESSAGE_BASIC", "Workers have started successfully.")
        code = tree.wait()
        with self._lock:
            del self._trees[name]
            cancelled = name in self._cancelled
        if cancelled:
            self._end(name, "CANCELLED", "the job was cancelled")
        elif code == 0:
            self._end(name, "DONE", "")
        else:
            self._end(name, "FAILED", "\n".join([f"the pipeline's process ended with exit code {code}", *tail]))

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


def has_ended(job: Any) -> bool:
    """Whether a job's state is one that stays."""
    return bool(job.current_state.name.endswith(("_DONE", "_FAILED", "_CANCELLED", "_DRAINED", "_UPDATED", "_STOPPED")))


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
