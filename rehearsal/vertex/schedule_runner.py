"""Schedules fire: one thread that sleeps until the next time of the rehearsed clock and starts what is due.

A run that is due while `max_concurrent_active_run_count` runs of its schedule are active (0: no limit) is skipped, or
with `allow_queueing` waits for a place; so do the runs that `catch_up` makes up for. The schedule is COMPLETED once it
has started `max_run_count` runs, whatever still waits. Times that passed all at once (the clock was moved) are gone
through in order. What no page says of queues is in docs/rehearsal.md.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.schedules
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from rehearsal.doors.errors import ServiceError
from rehearsal.doors.messages import plain
from rehearsal.resources.cloud_state import CloudState
from rehearsal.resources.states import has_ended
from rehearsal.vertex import pipeline_jobs, schedules

# How often, by the machine's clock, a queue is looked at for a free place.
_QUEUE_LOOK_S = 0.1


class ScheduleRunner:
    """Starts the runs of a cloud's schedules until it is stopped."""

    def __init__(self, cloud: CloudState, failures: list[str]) -> None:
        self._cloud, self._failures = cloud, failures
        self._queues: dict[str, deque[float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a second time does nothing."""
        self._stopping.set()
        self._cloud.schedules_changed.set()
        self._thread.join()

    def _run(self) -> None:
        changed = self._cloud.schedules_changed
        while True:
            # In this order: what is set after it was cleared is seen below, or ends the wait.
            changed.clear()
            if self._stopping.is_set():
                return
            try:
                due = self._fire()
            except Exception:  # noqa: BLE001  # a thread's entry: a fault of ours is kept, and told when the server stops
                self._failures.append(traceback.format_exc())
                return
            if any(self._queues.values()):
                changed.wait(_QUEUE_LOOK_S)
            elif due is None:
                changed.wait()
            else:
                self._cloud.clock.sleep_until(due, changed)

    def _fire(self) -> float | None:
        """Start what is due; return when the next is."""
        upcoming = []
        found = list(self._cloud.store.list("projects/", types.Schedule))
        for gone in self._queues.keys() - {schedule.name for schedule in found}:
            del self._queues[gone]
        for schedule in found:
            name = schedule.name
            while schedule.state == schedules.STATE.ACTIVE and schedule.next_run_time:
                due = schedule.next_run_time.timestamp()
                if due > self._cloud.clock.now():
                    upcoming.append(due)
                    break
                missed = schedule.catch_up and bool(schedule.last_resume_time) and due <= _resumed(schedule)
                self._run_or_wait(schedule, due, may_wait=schedule.allow_queueing or missed)
                try:
                    schedule = self._cloud.store.update(name, partial(self._pass, due))
                except KeyError:
                    break
            self._serve_queue(name)
        return min(upcoming, default=None)

    def _pass(self, due: float, schedule: Any) -> None:
        """Go to the time after `due`, unless an update has done so."""
        if schedule.next_run_time and schedule.next_run_time.timestamp() == due:
            schedules.set_next(self._cloud, schedule, due)

    def _run_or_wait(self, schedule: Any, due: float, *, may_wait: bool) -> None:
        queue = self._queues.setdefault(schedule.name, deque())
        if not queue and self._has_place(schedule):
            self._start(schedule, due)
        elif may_wait:
            queue.append(due)
        else:
            text = f"Skipped: {self._active(schedule)} of {schedule.max_concurrent_active_run_count} runs are active."
            self._respond(schedule.name, due, text, started=False)

    def _serve_queue(self, name: str) -> None:
        queue = self._queues.get(name)
        while queue:
            schedule = self._cloud.store.find(name)
            if schedule is None or schedule.state == schedules.STATE.PAUSED or schedules.has_all_runs(schedule):
                queue.clear()
            elif self._has_place(schedule):
                self._start(schedule, queue.popleft())
            else:
                return

    def _has_place(self, schedule: Any) -> bool:
        limit = schedule.max_concurrent_active_run_count
        return not limit or self._active(schedule) < limit

    def _start(self, schedule: Any, due: float) -> None:
        job = types.PipelineJob(schedule.create_pipeline_job_request.pipeline_job)
        job.schedule_name = schedule.name
        spec = json_format.MessageToDict(plain(job).pipeline_spec)
        title = spec.get("pipelineInfo", {}).get("name", "scheduled")
        job.display_name = job.display_name or title
        parent = schedule.name.rsplit("/schedules/", 1)[0]
        name = f"{parent}/pipelineJobs/{title}-{datetime.fromtimestamp(due, UTC):%Y%m%d%H%M%S}"
        if self._cloud.store.find(name) is not None:
            name += f"-{self._cloud.store.new_id()}"
        self._cloud.store.scheduled_s[name] = due
        try:
            pipeline_jobs.add(self._cloud, name, job)
        except ServiceError as error:
            self._respond(schedule.name, due, f"{error.code}: {error.message}", started=False)
        else:
            self._respond(schedule.name, due, "OK", started=True)

    def _respond(self, name: str, due: float, text: str, *, started: bool) -> None:
        def change(schedule: Any) -> None:
            schedule.last_scheduled_run_response = {"scheduled_run_time": self._cloud.time(due), "run_response": text}
            schedule.started_run_count += started
            if schedules.has_all_runs(schedule):
                schedules.complete(schedule)

        try:
            self._cloud.store.update(name, change)
        except KeyError:
            return

    def _active(self, schedule: Any) -> int:
        parent = schedule.name.rsplit("/schedules/", 1)[0]
        jobs = self._cloud.store.list(f"{parent}/pipelineJobs/")
        return sum(job.schedule_name == schedule.name and not has_ended(job) for job in jobs)


def _resumed(schedule: Any) -> float:
    return float(schedule.last_resume_time.timestamp())
