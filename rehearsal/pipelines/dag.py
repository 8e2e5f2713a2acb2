"""The walk over a pipeline's compiled specification: which task runs when, side by side where nothing orders them.

Each task of a DAG is a coroutine that waits for the tasks before it; a container runs in a thread. What decides is in
pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and in Vertex AI's pages on pipelines; docs/rehearsal.md
has what is played where neither says.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from google.rpc.code_pb2 import CANCELLED, FAILED_PRECONDITION

from contracts.errors import ShardlineError
from rehearsal.pipelines.conditions import evaluate
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.reports import Path, Reporter, error_of
from rehearsal.pipelines.task import Call, TaskRunner
from rehearsal.pipelines.values import (
    Data,
    TaskFailed,
    collect,
    dag_outputs,
    loop_items,
    resolve_inputs,
    upstream_of,
)

# Containers at a time on this machine: a Python one takes about 100 MB. Vertex AI has a quota in its place.
MAX_CONTAINERS = 16
# Tasks that an error names.
_NAMED = 10
_COMPLETED = "ALL_UPSTREAM_TASKS_COMPLETED"
_GOOD = frozenset({"SUCCEEDED", "SKIPPED"})
# What a specification or a value can cause that nobody foresaw ends its task, never the walk.
_TASK_ERRORS = (TaskFailed, ShardlineError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OSError)
_EXIT_HANDLER = re.compile(r"exit-handler-\d+")


@dataclass
class Result:
    """How a task, or the whole run, ended: as PipelineTaskDetail's state, with its outputs or a google.rpc.Status."""

    state: str
    data: Data = field(default_factory=Data)
    error: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Scope:
    """A DAG under way."""

    path: Path
    tasks: Mapping[str, Any]
    inputs: Data
    at_exit: bool
    """It is what an exit handler ends with, or in it."""
    ended: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)

    def produced(self) -> dict[str, Data]:
        return {name: result.data for name, result in self.results.items()}


class Walk:
    """One run of a pipeline.

    Args:
        containers: Run its tasks' containers.
        reporter: Told what becomes of its tasks.
    """

    def __init__(self, containers: Containers, reporter: Reporter) -> None:
        self._containers, self._reporter = containers, reporter
        self._spec = containers.job.spec
        self._runner = TaskRunner(containers, self._spec)
        self._pool = ThreadPoolExecutor(MAX_CONTAINERS, thread_name_prefix="task")
        self._cancelled = asyncio.Event()
        self._failed = False

    def cancel(self) -> None:
        """End what runs and begin nothing more; called in the loop's thread."""
        self._containers.cancel()
        self._cancelled.set()

    async def run(self) -> Result:
        """Run the pipeline to its end and report it; return its state and error."""
        root, job = self._spec["root"], self._containers.job
        self._reporter.task((), "RUNNING", is_dag=True)
        sources = {name: {"runtimeValue": {"constant": value}} for name, value in job.parameters.items()}
        inputs, _ = resolve_inputs({"inputs": {"parameters": sources}}, root, Data(), {})
        try:
            result = Result("SUCCEEDED", await self._run_dag((), root, inputs, at_exit=False))
        except _TASK_ERRORS as error:
            result = Result("FAILED", error=_error(error))
        finally:
            self._pool.shutdown(wait=False)
        if self._cancelled.is_set():
            result = Result("CANCELLED", error=error_of(CANCELLED, "the run was cancelled"))
        self._reporter.task((), result.state, error=result.error or None)
        return result

    async def _run_dag(self, path: Path, component: Mapping[str, Any], inputs: Data, *, at_exit: bool) -> Data:
        """Run the tasks of a DAG; TaskFailed where one of them did."""
        dag = component["dag"]
        scope = _Scope(path, dag.get("tasks", {}), inputs, at_exit)
        # All are there before the first begins.
        scope.ended = {name: asyncio.ensure_future(self._follow(scope, name)) for name in scope.tasks}
        await asyncio.gather(*scope.ended.values())
        failed = [name for name, result in scope.results.items() if result.state in ("FAILED", "CANCELLED")]
        if failed:
            raise TaskFailed(f"the DAG failed because these of its tasks did: {_few(failed)}")
        return dag_outputs(dag.get("outputs", {}), scope.produced())

    async def _follow(self, scope: _Scope, name: str) -> None:
        """Wait for the tasks before a task, then see to it."""
        task = scope.tasks[name]
        before = upstream_of(task)
        if before:
            await asyncio.wait([scope.ended[one] for one in before])
        path = (*scope.path, name)
        at_exit = scope.at_exit or _is_exit_task(task)
        scope.results[name] = await self._run_task(scope, path, task, before, at_exit=at_exit)

    async def _run_task(
        self, scope: _Scope, path: Path, task: Mapping[str, Any], before: set[str], *, at_exit: bool
    ) -> Result:
        policy = task.get("triggerPolicy", {})
        anyway = policy.get("strategy") == _COMPLETED
        if self._is_stopped(at_exit=at_exit) or not (
            anyway or all(scope.results[one].state in _GOOD for one in before)
        ):
            return self._not_triggered(path)
        try:
            component = self._spec["components"][task["componentRef"]["name"]]
            inputs, live = resolve_inputs(task, component, scope.inputs, scope.produced(), tolerant=anyway)
            inputs.parameters |= self._final_status(scope, task)
            if (condition := policy.get("condition")) and not evaluate(condition, inputs.parameters):
                return self._not_triggered(path)
        except _TASK_ERRORS as error:
            return self._end(path, Result("FAILED", error=_error(error)))
        is_loop = "parameterIterator" in task or "artifactIterator" in task
        return await self._run_call(Call(path, task, component, inputs, live), is_loop=is_loop, at_exit=at_exit)

    async def _run_call(self, call: Call, *, is_loop: bool, at_exit: bool) -> Result:
        """Run a task, or one iteration of it, from PENDING to its final state."""
        is_dag, inputs = "dag" in call.component, call.inputs
        self._reporter.task(
            call.path, "PENDING", is_dag=is_loop or is_dag, inputs=inputs.parameters, artifacts_in=inputs.artifacts
        )
        try:
            if is_loop or is_dag:
                self._reporter.task(call.path, "RUNNING")
            if is_loop:
                result = Result("SUCCEEDED", await self._run_loop(call, at_exit=at_exit))
            elif is_dag:
                inputs = self._runner.resolve(call)
                result = Result("SUCCEEDED", await self._run_dag(call.path, call.component, inputs, at_exit=at_exit))
            else:
                result = await self._run_container(call)
        except _TASK_ERRORS as error:
            result = Result("FAILED", error=_error(error))
        return self._end(call.path, result)

    async def _run_loop(self, call: Call, *, at_exit: bool) -> Data:
        """Run a task once for each item, each an own task below it; TaskFailed where one of them failed."""
        # Of a loop over a DAG what the specification gives is resolved once, not again in each iteration.
        is_dag = "dag" in call.component
        inputs = self._runner.resolve(call, whole=False) if is_dag else call.inputs
        live = frozenset() if is_dag else call.live
        limit = call.task.get("iteratorPolicy", {}).get("parallelismLimit", 0)
        gate: Any = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()

        async def run_one(index: int, item: Data) -> Result:
            path = (*call.path, f"{call.path[-1]}-iteration-{index}")
            async with gate:
                if self._is_stopped(at_exit=at_exit):
                    return self._not_triggered(path)
                one = Call(path, call.task, call.component, item, live)
                return await self._run_call(one, is_loop=False, at_exit=at_exit)

        results = await asyncio.gather(*(run_one(*one) for one in enumerate(loop_items(call.task, inputs))))
        failed = [str(index) for index, result in enumerate(results) if result.state not in _GOOD]
        if failed:
            raise TaskFailed(f"these iterations of the loop failed or were not begun: {_few(failed)}")
        return collect(result.data for result in results)

    async def _run_container(self, call: Call) -> Result:
        policy = call.task.get("retryPolicy", {})
        retries = int(policy.get("maxRetryCount", 0))
        delay_s = _seconds(policy.get("backoffDuration", "0s"))
        left_s = _seconds(policy.get("backoffMaxDuration", "3600s"))
        for attempt in range(1, retries + 2):
            try:
                run = asyncio.get_running_loop().run_in_executor(self._pool, self._runner.run, call, attempt)
                return Result(*await run)
            except _TASK_ERRORS:
                if attempt > retries or delay_s > left_s or self._cancelled.is_set():
                    raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._cancelled.wait(), delay_s)
            left_s -= delay_s
            delay_s *= float(policy.get("backoffFactor") or 2.0)
        raise AssertionError("the last attempt returns or raises")

    def _is_stopped(self, *, at_exit: bool) -> bool:
        # Of "will stop scheduling any new tasks when a task has failed" (PipelineFailurePolicy): a task that ignores
        # what happened before it is a new task too. An exit task is what runs in any case, with all that is in it.
        # "job will not trigger new tasks when job is in CANCELLING state" (TriggerStrategy): exit tasks neither.
        return self._cancelled.is_set() or (self._failed and self._containers.job.fails_fast and not at_exit)

    def _not_triggered(self, path: Path) -> Result:
        self._reporter.task(path, "NOT_TRIGGERED")
        return Result("NOT_TRIGGERED")

    def _end(self, path: Path, result: Result) -> Result:
        if self._cancelled.is_set():
            # A launcher that was told to stop ends with 0: that is no success.
            result = Result("CANCELLED", error=result.error or error_of(CANCELLED, "the run was cancelled"))
        if result.state == "FAILED":
            self._failed = True
        data = result.data
        self._reporter.task(
            path, result.state, error=result.error or None, outputs=data.parameters, artifacts_out=data.artifacts
        )
        return result

    def _final_status(self, scope: _Scope, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that tell how a task before this one ended, as Vertex writes them."""
        found = {}
        for name, source in task.get("inputs", {}).get("parameters", {}).items():
            if "taskFinalStatus" in source:
                producer = source["taskFinalStatus"]["producerTask"]
                result = scope.results[producer]
                found[name] = {
                    "state": "SUCCEEDED" if result.state in _GOOD else result.state,
                    "pipelineJobResourceName": self._containers.job.name,
                    "pipelineTaskName": producer,
                    "error": result.error,
                }
        return found


def _is_exit_task(task: Mapping[str, Any]) -> bool:
    """Whether a task is the one of a dsl.ExitHandler, which kfp compiles to a task after the handler's group."""
    strategy = task.get("triggerPolicy", {}).get("strategy")
    return strategy == _COMPLETED and any(map(_EXIT_HANDLER.fullmatch, task.get("dependentTasks", [])))


def _error(error: Exception) -> dict[str, Any]:
    known = isinstance(error, (TaskFailed, ShardlineError))
    return error_of(FAILED_PRECONDITION, str(error) if known else f"{type(error).__name__}: {error}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _seconds(duration: str) -> float:
    """Return a protobuf Duration of JSON, "1.5s"."""
    return float(duration.removesuffix("s"))
