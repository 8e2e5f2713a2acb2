"""The walk over a specification, in this process: containers are counted, not started."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines.containers import Containers, ContainerTask
from rehearsal.pipelines.dag import MAX_CONTAINERS, Walk
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.reports import Reporter
from rehearsal.pipelines.spec import normalise
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.world import LIMIT_S

# What a container does.
Act = Callable[[Containers, ContainerTask], object]


class Counted(Containers):
    """Containers that only take a while."""

    def __init__(self, job: Job, folder: Path, reporter: Reporter, act: Act) -> None:
        super().__init__(job, folder, {MARK_VARIABLE: ""}, reporter, None, "")
        self.now = self.most = 0
        self._count, self._act = threading.Lock(), act

    def run(self, task: ContainerTask) -> None:
        self.note_running(task.path)
        with self._count:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self._act(self, task)
        finally:
            with self._count:
                self.now -= 1


class Played:
    """A pipeline that was walked."""

    def __init__(
        self,
        folder: Path,
        pipeline: Any,
        act: Act,
        during: Callable[[Walk], Any] | None = None,
    ) -> None:
        job = Job(
            name="projects/1/locations/l/pipelineJobs/run",
            uuid="1",
            project="acme",
            project_number="1",
            location="l",
            pipeline_root="gs://line/root",
            spec=normalise(json_format.MessageToDict(pipeline.pipeline_spec)),
            parameters={},
            create_time="",
            schedule_time="",
        )
        stream = io.BytesIO()
        reporter = Reporter(stream, job.uuid)
        self.containers = Counted(job, folder, reporter, act)

        async def walk() -> Any:
            begun = Walk(self.containers, reporter)
            other = asyncio.ensure_future(during(begun)) if during else None
            result = await begun.run()
            if other is not None:
                await other
            return result

        self.result = asyncio.run(walk())
        reports = [json.loads(line) for line in stream.getvalue().splitlines()]
        self.states: dict[str, list[str]] = {}
        for report in reports:
            self.states.setdefault(".".join(report["path"]), []).append(report["state"])


def test_so_many_containers_run_at_a_time_and_no_more(tmp_path: Path) -> None:
    # Fewer at a time would wait here for ever.
    together = threading.Barrier(MAX_CONTAINERS)
    played = Played(tmp_path, graphs.siblings, lambda *_: together.wait(LIMIT_S))
    assert played.result.state == "SUCCEEDED", played.result.error
    assert played.containers.most == MAX_CONTAINERS
    assert played.states["say-32"] == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_a_run_that_is_cancelled_begins_nothing_more(tmp_path: Path) -> None:
    begun = threading.Event()

    async def cancel(walk: Walk) -> None:
        while not begun.is_set():
            await asyncio.sleep(0.01)
        walk.cancel()

    def act(containers: Containers, task: ContainerTask) -> None:
        begun.set()
        assert containers.cancelled.wait(LIMIT_S)

    played = Played(tmp_path, graphs.two, act, cancel)
    assert played.result.state == "CANCELLED" and played.result.error["code"] == 1
    assert played.states["exit-handler-1.say"] == ["PENDING", "RUNNING", "CANCELLED"]
    # "the task with the trigger policy at ALL_UPSTREAM_TASKS_COMPLETED will not start when job cancellation is in
    # progress" (pipeline_spec.proto, TriggerStrategy).
    assert played.states["final"] == played.states["exit-handler-1.say-2"] == ["NOT_TRIGGERED"]


def test_a_fault_that_nobody_foresaw_fails_its_task(tmp_path: Path) -> None:
    def act(containers: Containers, task: ContainerTask) -> None:
        if task.path[-1] == "say":
            raise KeyError("what nobody knows")

    played = Played(tmp_path, graphs.two, act)
    assert played.result.state == "FAILED"
    assert played.states["exit-handler-1.say"][-1] == "FAILED" and played.states["final"][-1] == "SUCCEEDED"
