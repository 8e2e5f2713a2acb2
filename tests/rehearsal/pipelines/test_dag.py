"""The walk over a specification, in this process: containers are counted, not started."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines import dag
from rehearsal.pipelines.containers import Containers, ContainerTask
from rehearsal.pipelines.dag import MAX_CONTAINERS, Walk
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.reports import Reporter
from rehearsal.pipelines.spec import normalise
from rehearsal.pipelines.values import TaskFailed
from tests.rehearsal.pipelines import programs_control as control


class Counted(Containers):
    """Containers that only take a while."""

    def __init__(self, job: Job, folder: Path, reporter: Reporter, act: Callable[[ContainerTask], None]) -> None:
        super().__init__(job, folder, {MARK_VARIABLE: ""}, reporter, None, "")
        self.now = self.most = self.threads = 0
        self._count, self._act = threading.Lock(), act

    def run(self, task: ContainerTask, attempt: int) -> None:
        self.note_running(task.path, attempt)
        with self._count:
            self.now += 1
            self.most, self.threads = max(self.most, self.now), max(self.threads, threading.active_count())
        try:
            self._act(task)
        finally:
            with self._count:
                self.now -= 1


class Played:
    """A pipeline that was walked."""

    def __init__(
        self,
        folder: Path,
        pipeline: Any,
        act: Callable[[ContainerTask], None],
        during: Callable[[Walk], Any] | None = None,
        **parameters: Any,
    ) -> None:
        job = Job(
            name="projects/1/locations/l/pipelineJobs/run",
            uuid="1",
            project="acme",
            project_number="1",
            location="l",
            pipeline_root="gs://line/root",
            spec=normalise(json_format.MessageToDict(pipeline.pipeline_spec)),
            parameters=parameters,
            create_time="",
            schedule_time="",
        )
        stream = io.BytesIO()
        reporter = Reporter(stream, job.uuid)
        self.containers = Counted(job, folder, reporter, act)

        async def walk() -> Any:
            made = Walk(self.containers, reporter)
            other = asyncio.ensure_future(during(made)) if during else None
            result = await made.run()
            if other is not None:
                await other
            return result

        self.result = asyncio.run(walk())
        reports = [json.loads(line) for line in stream.getvalue().splitlines()]
        self.states: dict[str, list[str]] = {}
        for report in reports:
            self.states.setdefault(".".join(report["path"]), []).append(report["state"])


def take_a_while(task: ContainerTask) -> None:
    time.sleep(0.01)


def fail(task: ContainerTask) -> None:
    raise TaskFailed("on purpose")


def test_so_many_containers_run_at_a_time_and_no_more(tmp_path: Path) -> None:
    before = threading.active_count()
    played = Played(tmp_path, control.parameter_loop, take_a_while, items=[str(number) for number in range(300)])
    assert played.result.state == "SUCCEEDED"
    assert played.containers.most == MAX_CONTAINERS
    # Iterations that wait take no thread.
    assert played.containers.threads <= before + MAX_CONTAINERS
    assert played.states["for-loop-1.for-loop-1-iteration-299.say"] == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_a_limit_is_that_of_its_loop(tmp_path: Path) -> None:
    played = Played(tmp_path, control.in_threes, take_a_while, items=[str(number) for number in range(20)])
    assert (played.result.state, played.containers.most) == ("SUCCEEDED", 3)


def test_retries_wait_longer_each_time_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait_for(event: Any, timeout: float) -> None:
        event.close()
        waited.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(dag.asyncio, "wait_for", wait_for)
    played = Played(tmp_path, control.patient, fail)
    # 10 s, doubled each time, 100 s at most together (set_retry's backoff_max_duration).
    assert waited == [10.0, 20.0, 40.0]
    assert played.states["say"] == ["PENDING", *["RUNNING"] * 4, "FAILED"]


def test_a_run_that_is_cancelled_begins_nothing_more(tmp_path: Path) -> None:
    async def cancel(walk: Walk) -> None:
        while not played_failure.is_set():
            await asyncio.sleep(0.01)
        # It waits for its next attempt, an hour away.
        walk.cancel()

    played_failure = threading.Event()

    def act(task: ContainerTask) -> None:
        played_failure.set()
        fail(task)

    played = Played(tmp_path, control.exit_after_retries, act, cancel)
    assert played.result.state == "CANCELLED" and played.result.error["code"] == 1
    assert played.states["exit-handler-1.say"] == ["PENDING", "RUNNING", "CANCELLED"]
    # "the task with the trigger policy at ALL_UPSTREAM_TASKS_COMPLETED will not start when job cancellation is in
    # progress" (pipeline_spec.proto, TriggerStrategy).
    assert played.states["final"] == played.states["exit-handler-1.say-2"] == ["NOT_TRIGGERED"]


def test_a_fault_that_nobody_foresaw_fails_its_task(tmp_path: Path) -> None:
    def act(task: ContainerTask) -> None:
        raise KeyError("what nobody knows")

    played = Played(tmp_path, control.two, act)
    assert played.result.state == "FAILED"
    assert played.states["say"][-1] == played.states["say-2"][-1] == "FAILED"
