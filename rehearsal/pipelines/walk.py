"""Execution of a pipeline's DAG: a thread per task, which waits for its upstream tasks.

Order and triggers follow pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and Vertex AI's documentation;
docs/rehearsal.md has our choices where both are unclear.
"""

from __future__ import annotations

import graphlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from google.rpc.code_pb2 import CANCELLED, FAILED_PRECONDITION

from rehearsal.pipelines.job import Job, TaskPath
from rehearsal.pipelines.placeholders import UnknownPlaceholder
from rehearsal.pipelines.tasks import Call, Tasks
from rehearsal.pipelines.values import Data, TaskFailed, resolve_inputs, upstream_of

# Concurrent containers: each takes about 100 MB. Vertex AI has a quota instead.
MAX_CONTAINERS = 16
_COMPLETED = "ALL_UPSTREAM_TASKS_COMPLETED"
_GOOD = frozenset({"SUCCEEDED", "SKIPPED"})


@dataclass
class Result:
    """Result of a task, or of the run: PipelineTaskDetail's state, with outputs or a google.rpc.Status."""

    state: str
    data: Data = field(default_factory=Data)
    error: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Dag:
    """A running DAG."""

    path: TaskPath
    tasks: Mapping[str, Any]
    inputs: Data
    futures: dict[str, Future[Result]] = field(default_factory=dict)


class Walk:
    """One run of a pipeline.

    `report` is called with path, state and details (task_details.note_task) of each task, by several threads.
    """

    def __init__(self, job: Job, tasks: Tasks, report: Callable[..., None], cancelled: threading.Event) -> None:
        self._job, self._tasks, self._report, self._cancelled = job, tasks, report, cancelled
        self._places = threading.BoundedSemaphore(MAX_CONTAINERS)

    def run(self) -> Result:
        """Run the pipeline to its end."""
        root = self._job.spec["root"]
        self._report((), "RUNNING", is_dag=True)
        sources = {name: {"runtimeValue": {"constant": value}} for name, value in self._job.parameters.items()}
        inputs, _ = resolve_inputs({"inputs": {"parameters": sources}}, root, Data(), {})
        try:
            self._run_dag((), root, inputs)
            result = Result("SUCCEEDED")
        except TaskFailed as error:
            result = Result("FAILED", error={"code": FAILED_PRECONDITION, "message": str(error)})
        if self._cancelled.is_set():
            result = Result("CANCELLED", error={"code": CANCELLED, "message": "the run was cancelled"})
        self._report((), result.state, error=result.error)
        return result

    def _run_dag(self, path: TaskPath, component: Mapping[str, Any], inputs: Data) -> None:
        """Run the tasks of a DAG; TaskFailed if one of them failed."""
        dag = _Dag(path, component["dag"].get("tasks", {}), inputs)
        graph = {name: upstream_of(task) for name, task in dag.tasks.items()}
        # A thread per task, so that waiting tasks do not block others.
        with ThreadPoolExecutor(max(1, len(graph)), thread_name_prefix="task") as pool:
            for name in graphlib.TopologicalSorter(graph).static_order():
                dag.futures[name] = pool.submit(self._run_task, dag, name, graph[name])
        failed = [name for name in graph if dag.futures[name].result().state in ("FAILED", "CANCELLED")]
        if failed:
            raise TaskFailed(f"the DAG failed because of these tasks: {', '.join(failed)}")

    def _run_task(self, dag: _Dag, name: str, upstream: set[str]) -> Result:
        """Run a task after its upstream tasks, unless it is not triggered; return its result."""
        task, path = dag.tasks[name], (*dag.path, name)
        upstream_results = {upstream_name: dag.futures[upstream_name].result() for upstream_name in upstream}
        ignores_failures = task.get("triggerPolicy", {}).get("strategy") == _COMPLETED
        # "job will not trigger new tasks when job is in CANCELLING state" (TriggerStrategy); this includes exit tasks.
        is_ready = ignores_failures or all(result.state in _GOOD for result in upstream_results.values())
        if self._cancelled.is_set() or not is_ready:
            self._report(path, "NOT_TRIGGERED")
            return Result("NOT_TRIGGERED")
        try:
            component = self._job.spec["components"][task["componentRef"]["name"]]
            produced = {upstream_name: result.data for upstream_name, result in upstream_results.items()}
            inputs, specified = resolve_inputs(task, component, dag.inputs, produced, ignores_failures=ignores_failures)
            inputs.parameters |= self._final_status(task, upstream_results)
            result = self._run_call(Call(path, task, component, inputs, specified))
        except (TaskFailed, UnknownPlaceholder) as error:
            result = Result("FAILED", error={"code": FAILED_PRECONDITION, "message": str(error)})
        except Exception as error:  # noqa: BLE001 - thread entry point: an unexpected error fails the task only
            message = f"{type(error).__name__}: {error}"
            result = Result("FAILED", error={"code": FAILED_PRECONDITION, "message": message})
        if self._cancelled.is_set():
            # Not a success, although launchers exit with 0 after SIGTERM.
            result = Result("CANCELLED", error=result.error or {"code": CANCELLED, "message": "the run was cancelled"})
        self._report(path, result.state, error=result.error, outputs=result.data)
        return result

    def _run_call(self, call: Call) -> Result:
        self._report(call.path, "PENDING", inputs=call.inputs)
        if "dag" in call.component:
            self._report(call.path, "RUNNING", is_dag=True)
            self._run_dag(call.path, call.component, call.inputs)
            return Result("SUCCEEDED")
        with self._places:
            if self._cancelled.is_set():
                raise TaskFailed("the run was cancelled")
            return Result(*self._tasks.run(call, lambda: self._report(call.path, "RUNNING")))

    def _final_status(self, task: Mapping[str, Any], upstream_results: Mapping[str, Result]) -> dict[str, Any]:
        """Return the inputs of type TASK_FINAL_STATUS: results of upstream tasks in Vertex AI's form."""
        values = {}
        for name, source in task.get("inputs", {}).get("parameters", {}).items():
            if "taskFinalStatus" in source:
                producer = source["taskFinalStatus"]["producerTask"]
                result = upstream_results[producer]
                values[name] = {
                    "state": "SUCCEEDED" if result.state in _GOOD else result.state,
                    "pipelineJobResourceName": self._job.name,
                    "pipelineTaskName": producer,
                    "error": result.error,
                }
        return values
