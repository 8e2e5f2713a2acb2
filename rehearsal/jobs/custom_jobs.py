"""Execution of custom jobs, a thread each; machines.py runs the machines of one job."""

from __future__ import annotations

import threading
from typing import Any

from google.cloud import aiplatform_v1
from google.rpc import status_pb2
from google.rpc.code_pb2 import CANCELLED, INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED

from rehearsal.clock import to_datetime
from rehearsal.jobs.machines import JobMachines, Outcome
from rehearsal.jobs.market import Market
from rehearsal.jobs.threads import JobThreads, Place
from rehearsal.machines.machine import Machine, Scale, UnknownCommand, find_machines
from rehearsal.vertex.logs import JOB_RESOURCE

# proto-plus declares an enum's members as numbers.
_STATE: Any = aiplatform_v1.JobState
# "About one minute after a job ends, Vertex AI sets the error code on the training job object":
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
ERROR_DELAY_S = 60.0


class CustomJobRuns(JobThreads):
    """Executes custom jobs (google.cloud.aiplatform_v1.CustomJob)."""

    def __init__(self, place: Place, *, market: Market | None = None, scale: Scale | None = None) -> None:
        super().__init__(place)
        self.market, self.scale = market or Market(), scale or Scale()

    def _mark_cancelled(self, job: Any) -> None:
        job.state, job.update_time = _STATE.JOB_STATE_CANCELLING, self._now()

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        outcome = self._run_machines(self.place.store.get(name), cancelled)
        if outcome.state != "FAILED":
            self._end(name, outcome)
            return
        self._end(name, Outcome("FAILED"))
        cancelled.wait(ERROR_DELAY_S * self.scale.time_scale)
        self.place.store.update(name, lambda job: _set_error(job, outcome))

    def _fail(self, name: str, message: str) -> None:
        self._end(name, Outcome("FAILED", INTERNAL, message))

    def _run_machines(self, job: Any, cancelled: threading.Event) -> Outcome:
        if cancelled.is_set():
            return Outcome("CANCELLED", CANCELLED, "the job was cancelled before it had machines")
        try:
            machines = find_machines(job)
        except UnknownCommand as error:
            return Outcome("FAILED", INVALID_ARGUMENT, str(error))
        region = job.name.split("/")[3]
        if not self.market.has_machines(region, job.display_name):
            strategy = job.job_spec.scheduling.strategy.name.replace("STRATEGY_UNSPECIFIED", "STANDARD")
            types = ", ".join(sorted({machine.type for machine in machines}))
            text = f"Resources are insufficient in region: {region}. No {types} available with {strategy}."
            return Outcome("FAILED", RESOURCE_EXHAUSTED, text)

        def log(machine: Machine, text: str, severity: str) -> None:
            labels = {"job_id": job.name.rpartition("/")[2], "task_name": machine.name}
            self.place.logs.write(JOB_RESOURCE, labels, text, severity, self.place.clock.now())

        return JobMachines(
            job,
            machines,
            place=self.place,
            market=self.market,
            scale=self.scale,
            log=log,
            on_running=lambda: self.place.store.update(job.name, self._begin),
            cancelled=cancelled,
            is_closed=lambda: self._is_closed,
        ).run()

    def _begin(self, job: Any) -> None:
        if job.state == _STATE.JOB_STATE_PENDING:
            job.state = _STATE.JOB_STATE_RUNNING
        job.start_time = job.update_time = self._now()

    def _end(self, name: str, outcome: Outcome) -> None:
        def change(job: Any) -> None:
            job.state = _STATE[f"JOB_STATE_{outcome.state}"]
            job.end_time = job.update_time = self._now()
            _set_error(job, outcome)

        self.place.store.update(name, change)

    def _now(self) -> Any:
        return to_datetime(self.place.clock.now())


def _set_error(job: Any, outcome: Outcome) -> None:
    if outcome.message:
        job.error = status_pb2.Status(code=outcome.code, message=outcome.message)
