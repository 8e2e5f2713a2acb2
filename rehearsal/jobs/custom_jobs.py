"""Custom jobs of the local Vertex, each run by a thread (rehearsal/jobs/gang.py)."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import Any, Unpack

from google.cloud import aiplatform_v1
from google.rpc import status_pb2
from google.rpc.code_pb2 import CANCELLED, INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED

from rehearsal.jobs.gang import Ended, Gang
from rehearsal.jobs.lifecycle import JobRuns, Surroundings
from rehearsal.jobs.logbook import JOB_RESOURCE
from rehearsal.jobs.market import Market
from rehearsal.jobs.restarts import Reading
from rehearsal.machines.machine import Machine, Scale, UnknownCommand, find_machines
from rehearsal.machines.network import Network
from rehearsal.pipelines.task_details import moment
from rehearsal.resources.quotas import Quotas
from rehearsal.resources.store import Store

# proto-plus declares an enum's members as numbers.
_STATE: Any = aiplatform_v1.JobState
# The strategies by which a job waits for machines only so long.
_WAITS = "FLEX_START"
# How often a queued job looks whether there is enough for it.
_LOOK_S = 0.2
# "About one minute after a job ends, Vertex AI sets the error code on the training job object":
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
ERROR_DELAY_S = 60.0


class CustomJobRuns(JobRuns):
    """Executes custom jobs.

    Args:
        store: Has the jobs, as google.cloud.aiplatform_v1.CustomJob.
        market: Decides about machines.
        scale: How they are played.
        missing_images: Images that cannot be pulled.
        restarts: Reading of the rules for restarts.
        quotas: What jobs may hold at a time; one that finds too little left stays QUEUED.
        surroundings: Those of JobRuns; without a network: the loopback.
    """

    def __init__(
        self,
        store: Store,
        *,
        market: Market | None = None,
        scale: Scale | None = None,
        missing_images: frozenset[str] = frozenset(),
        restarts: Reading = "strict",
        quotas: Quotas | None = None,
        **surroundings: Unpack[Surroundings],
    ) -> None:
        super().__init__("job", store, **surroundings)
        self.market, self.scale = market or Market(), scale or Scale()
        self._missing, self._reading = missing_images, restarts
        self._quotas = quotas or Quotas()
        self._loopback: Network | None = None

    def _mark_cancelled(self, job: Any) -> None:
        job.state, job.update_time = _STATE.JOB_STATE_CANCELLING, moment(self._clock.now())

    def close(self) -> None:
        """End all jobs, and wait until nothing of them runs."""
        super().close()
        if self._loopback is not None:
            self._loopback.close()

    def _find_network(self) -> Network:
        with self._lock:
            if self.network is None:
                folder = self._folder / "network"
                self.network = self._loopback = Network(folder, refuse=lambda name: None, mode="loopback")
            return self.network

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        job = self._store.get(name)
        try:
            ended = self._play(job, cancelled)
        finally:
            self._quotas.give_back(name)
        # One that was deleted meanwhile has no state.
        with contextlib.suppress(KeyError):
            if ended.state != "FAILED":
                self._end(name, ended)
                return
            self._end(name, replace(ended, message=""))
            cancelled.wait(ERROR_DELAY_S * self.scale.time_scale)
            self._store.update(name, lambda job: _tell_error(job, ended))

    def _fail(self, name: str, fault: str) -> None:
        self._end(name, Ended("FAILED", INTERNAL, f"the rehearsal's own fault: {fault}"))

    def _end(self, name: str, ended: Ended) -> None:
        now = moment(self._clock.now())

        def change(job: Any) -> None:
            job.state = _STATE[f"JOB_STATE_{ended.state}"]
            job.end_time = job.update_time = now
            _tell_error(job, ended)

        self._store.update(name, change)

    def _play(self, job: Any, cancelled: threading.Event) -> Ended:
        if cancelled.is_set():
            return Ended("CANCELLED", CANCELLED, "the job was cancelled before it had machines")
        try:
            machines = find_machines(job)
        except UnknownCommand as error:
            return Ended("FAILED", INVALID_ARGUMENT, str(error))
        for machine in machines:
            if machine.image in self._missing:
                message = f"The replica {machine.name} could not be started: image {machine.image} was not found, or "
                return Ended("FAILED", INVALID_ARGUMENT, message + "may not be pulled.")
        if not self._wait_for_quota(job, cancelled):
            return Ended("CANCELLED", CANCELLED, "the job was cancelled while it was queued")
        if (without := self._wait_for_machines(job, cancelled)) is not None:
            return without
        gang = Gang(
            job,
            machines,
            folder=self._folder / job.name.rpartition("/")[2],
            network=self._find_network(),
            token=self._token,
            environment=self.environment,
            say=lambda machine, text, severity: self._log(job, machine, text, severity),
            market=self.market,
            scale=self.scale,
            now=self._clock.now,
            reading=self._reading,
            on_running=lambda: self._store.update(job.name, self._begin),
        )
        gang.cancelled = cancelled
        return gang.run()

    def _wait_for_quota(self, job: Any, cancelled: threading.Event) -> bool:
        """Wait until as much of the quotas is left as a job needs; False: it was cancelled before."""
        region = job.name.split("/")[3]
        if self._quotas.take(job.name, job, region):
            return True
        self._set_state(job.name, _STATE.JOB_STATE_QUEUED)
        while not self._quotas.take(job.name, job, region):
            if cancelled.wait(_LOOK_S):
                return False
        self._set_state(job.name, _STATE.JOB_STATE_PENDING)
        return True

    def _set_state(self, name: str, state: Any) -> None:
        """Change the state of a job that has not begun, and that nobody has cancelled."""

        def change(job: Any) -> None:
            if job.state in (_STATE.JOB_STATE_PENDING, _STATE.JOB_STATE_QUEUED):
                job.state, job.update_time = state, moment(self._clock.now())

        self._store.update(name, change)

    def _wait_for_machines(self, job: Any, cancelled: threading.Event) -> Ended | None:
        """Return how the job ends when there are no machines for it; None: there are."""
        region = job.name.split("/")[3]
        scheduling = job.job_spec.scheduling
        strategy = scheduling.strategy.name.replace("STRATEGY_UNSPECIFIED", "STANDARD")
        types = {pool.machine_spec.machine_type for pool in job.job_spec.worker_pool_specs if pool.replica_count}
        if self.market.slow_start_s and cancelled.wait(self.market.slow_start_s * self.scale.time_scale):
            return Ended("CANCELLED", CANCELLED, "the job was cancelled while it waited for machines")
        stockout = self.market.take_stockout(region, types, strategy, job.display_name)
        # A job is of a region: without machines in one zone it has those of another.
        if stockout is None or stockout.is_zone:
            return None
        wanted = ", ".join(sorted(types))
        if self.market.stockout == "fail":
            message = f"Resources are insufficient in region: {region}. No {wanted} could be had by {strategy}."
            return Ended("FAILED", RESOURCE_EXHAUSTED, message)
        wait_s = scheduling.max_wait_duration.total_seconds() if scheduling.max_wait_duration else 0.0
        limit_s = wait_s * self.scale.time_scale if strategy == _WAITS and wait_s else None
        if cancelled.wait(limit_s):
            return Ended("CANCELLED", CANCELLED, "the job was cancelled while it waited for machines")
        message = f"Resources are insufficient in region: {region}. No {wanted} came in {wait_s:.0f} s."
        return Ended("FAILED", RESOURCE_EXHAUSTED, message)

    def _begin(self, job: Any) -> None:
        if job.state == _STATE.JOB_STATE_PENDING or job.state == _STATE.JOB_STATE_QUEUED:
            job.state = _STATE.JOB_STATE_RUNNING
        job.start_time = job.update_time = moment(self._clock.now())

    def _log(self, job: Any, machine: Machine, text: str, severity: str) -> None:
        labels = {"job_id": job.name.rpartition("/")[2], "task_name": machine.name}
        self._logs.write(JOB_RESOURCE, labels, text, severity, self._clock.now())


def _tell_error(job: Any, ended: Ended) -> None:
    if ended.message:
        job.error = status_pb2.Status(code=ended.code, message=ended.message)
