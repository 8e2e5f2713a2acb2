"""The walk over a pipeline's compiled specification: which task runs when, side by side where nothing orders them.

Each task of a DAG is a coroutine that waits for the tasks before it; a container runs in a thread. What decides is in
pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and in Vertex AI's pages on pipelines; docs/rehearsal.md
has what is played where neither says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from google.rpc.code_pb2 import CANCELLED, FAILED_PRECONDITION

from contracts.errors import ShardlineError
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.reports import Path, Reporter, error_of
from rehearsal.pipelines.task import Call, TaskRunner
from rehearsal.pipelines.values import Data, TaskFailed, resolve_inputs, upstream_of

# Containers at a time on this machine: one takes about 100 MB. Vertex AI has a quota in its place.
MAX_CONTAINERS = 16
_COMPLETED = "ALL_UPSTREAM_TASKS_COMPLETED"
_GOOD = frozenset({"SUCCEEDED", "SKIPPED"})
# What a specification or a value can cause that nobody foresaw ends its task, never the walk.
_TASK_ERRORS = (TaskFailed, ShardlineError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OSError)


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
    ended: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)


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
        self._cancelled = False

    def cancel(self) -> None:
        """End what runs and begin nothing more; called in the loop's thread."""
        self._containers.cancel()
        self._cancelled = True

    async def run(self) -> Result:
        """Run the pipeline to its end and report it; return its state and error."""
        root, job = self._spec["root"], self._containers.job
        self._reporter.task((), "RUNNING", is_dag=True)
        sources = {name: {"runtimeValue": {"constant": value}} for name, value in job.parameters.items()}
        inputs, _ = resolve_inputs({"inputs": {"parameters": sources}}, root, Data(), {})
        result = Result("SUCCEEDED")
        try:
            await self._run_dag((), root, inputs)
        except _TASK_ERRORS as error:
            result = Result("FAILED", error=_error(error))
        finally:
            self._pool.shutdown(wait=False)
        if self._cancelled:
            result = Result("CANCELLED", error=error_of(CANCELLED, "the run was cancelled"))
        self._reporter.task((), result.state, error=result.error or None)
        return result

    async def _run_dag(self, path: Path, component: Mapping[str, Any], inputs: Data) -> None:
        """Run the tasks of a DAG; TaskFailed where one of them did."""
        scope = _Scope(path, component["dag"].get("tasks", {}), inputs)
        # All are there before the first begins.
        scope.ended = {name: asyncio.ensure_future(self._follow(scope, name)) for name in scope.tasks}
        await asyncio.gather(*scope.ended.values())
        failed = [name for name, result in scope.results.items() if result.state in ("FAILED", "CANCELLED")]
        if failed:
            raise TaskFailed(f"the DAG failed because these of its tasks did: {', '.join(failed)}")

    async def _follow(self, scope: _Scope, name: str) -> None:
        """Wait for the tasks before a task, then see to it."""
        task = scope.tasks[name]
        before = upstream_of(task)
        if before:
            await asyncio.wait([scope.ended[one] for one in before])
        scope.results[name] = await self._run_task(scope, (*scope.path, name), task, before)

    async def _run_task(self, scope: _Scope, path: Path, task: Mapping[str, Any], before: set[str]) -> Result:
        """Run a task to its final state, or not at all."""
        anyway = task.get("triggerPolicy", {}).get("strategy") == _COMPLETED
        # "job will not trigger new tasks when job is in CANCELLING state" (TriggerStrategy): exit tasks neither.
        if self._cancelled or not (anyway or all(scope.results[one].state in _GOOD for one in before)):
            self._reporter.task(path, "NOT_TRIGGERED")
            return Result("NOT_TRIGGERED")
        try:
            component = self._spec["components"][task["componentRef"]["name"]]
            produced = {name: result.data for name, result in scope.results.items()}
            inputs, live = resolve_inputs(task, component, scope.inputs, produced, tolerant=anyway)
            inputs.parameters |= self._final_status(scope, task)
            result = await self._run_call(Call(path, task, component, inputs, live))
        except _TASK_ERRORS as error:
            result = Result("FAILED", error=_error(error))
        if self._cancelled:
            # A launcher that was told to stop ends with 0: that is no success.
            result = Result("CANCELLED", error=result.error or error_of(CANCELLED, "the run was cancelled"))
        data = result.data
        self._reporter.task(
            path, result.state, error=result.error or None, outputs=data.parameters, artifacts_out=data.artifacts
        )
        return result

    async def _run_call(self, call: Call) -> Result:
        is_dag, inputs = "dag" in call.component, call.inputs
        self._reporter.task(
            call.path, "PENDING", is_dag=is_dag, inputs=inputs.parameters, artifacts_in=inputs.artifacts
        )
        if is_dag:
            self._reporter.task(call.path, "RUNNING")
            await self._run_dag(call.path, call.component, inputs)
            return Result("SUCCEEDED")
        return Result(*await asyncio.get_running_loop().run_in_executor(self._pool, self._runner.run, call))

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


def _error(error: Exception) -> dict[str, Any]:
    known = isinstance(error, (TaskFailed, ShardlineError))
    return error_of(FAILED_PRECONDITION, str(error) if known else f"{type(error).__name__}: {error}")
