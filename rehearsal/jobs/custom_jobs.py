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
from rehearsal.machines.machine import Machine, Scale, UnknownCommand, find_machines
from rehearsal.machines.network import Network
from rehearsal.pipelines.task_details import moment
from rehearsal.resources.store import Store

# proto-plus declares an enum's members as numbers.
_STATE: Any = aiplatform_v1.JobState
# "About one minute after a job ends, Vertex AI sets the error code on the training job object":
# https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service
ERROR_DELAY_S = 60.0


class CustomJobRuns(JobRuns):
    """Executes custom jobs.

    Args:
        store: Has the jobs, as google.cloud.aiplatform_v1.CustomJob.
        market: Decides about machines.
        scale: How they are played.
        surroundings: Those of JobRuns; without a network: one of its own.
    """

    def __init__(
        self,
        store: Store,
        *,
        market: Market | None = None,
        scale: Scale | None = None,
        **surroundings: Unpack[Surroundings],
    ) -> None:
        super().__init__("job", store, **surroundings)
        self.market, self.scale = market or Market(), scale or Scale()
        self._own_network: Network | None = None

    def _mark_cancelled(self, job: Any) -> None:
        job.state, job.update_time = _STATE.JOB_STATE_CANCELLING, moment(self._clock.now())

    def close(self) -> None:
        """End all jobs, and wait until nothing of them runs."""
        super().close()
        if self._own_network is not None:
            self._own_network.close()

    def _find_network(self) -> Network:
        with self._lock:
            if self.network is None:
                self.network = self._own_network = Network(refuse=lambda name: None)
            return self.network

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        job = self._store.get(name)
        ended = self._play(job, cancelled)
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
        if (without := self._find_stockout(job)) is not None:
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
            on_running=lambda: self._store.update(job.name, self._begin),
        )
        gang.cancelled = cancelled
        return gang.run()

    def _find_stockout(self, job: Any) -> Ended | None:
        """Return how the job ends when there are no machines for it; None: there are."""
        region = job.name.split("/")[3]
        if self.market.has_machines(region, job.display_name):
            return None
        strategy = job.job_spec.scheduling.strategy.name.replace("STRATEGY_UNSPECIFIED", "STANDARD")
        types = {pool.machine_spec.machine_type for pool in job.job_spec.worker_pool_specs if pool.replica_count}
        wanted = ", ".join(sorted(types))
        message = f"Resources are insufficient in region: {region}. No {wanted} could be had by {strategy}."
        return Ended("FAILED", RESOURCE_EXHAUSTED, message)

    def _begin(self, job: Any) -> None:
        if job.state == _STATE.JOB_STATE_PENDING:
            job.state = _STATE.JOB_STATE_RUNNING
        job.start_time = job.update_time = moment(self._clock.now())

    def _log(self, job: Any, machine: Machine, text: str, severity: str) -> None:
        labels = {"job_id": job.name.rpartition("/")[2], "task_name": machine.name}
        self._logs.write(JOB_RESOURCE, labels, text, severity, self._clock.now())


def _tell_error(job: Any, ended: Ended) -> None:
    if ended.message:
        job.error = status_pb2.Status(code=ended.code, message=ended.message)
