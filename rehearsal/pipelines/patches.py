"""kfp.local's orchestrator, executing a pipeline as Vertex would: everything that is private to kfp is named here.

kfp==2.17.* is pinned, and a test of each patch fails when what it replaces is gone or called otherwise. They are

    enhanced_dag_orchestrator.execute_task              reports, conditions, failure policy; an error in one task
                                                        ends that task, not the orchestrator
    ConditionEvaluator.evaluate_condition               takes what it cannot read for false: always true here, and
                                                        execute_task evaluates (rehearsal/pipelines/conditions.py)
    task_dispatcher.run_single_task_implementation      runs only kfp's own Python components, replaces placeholders
                                                        at the top level only, and "python3" wherever it stands
    importer_handler.run_importer                       the same placeholders; warns about gs://

Names that are used as they are: run_enhanced_dag, OrchestratorUtils.make_task_arguments, construct_executor_input,
executor_input_to_dict, to_protobuf_value; and in kfp_values.py load_executor_output, get_outputs_from_executor_output.

As in kfp.local, tasks of a DAG run one at a time, two iterations of a ParallelFor side by side, and a task that only
comes after a task whose condition was false runs. One that needs an output of such a task is not triggered. (What
Vertex does with the first is not verified; `ignore_upstream_failure` says what is meant there.) Caching is not played.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.compiler import pipeline_spec_builder
from kfp.local import (
    executor_input_utils,
    importer_handler,
    status,
    task_dispatcher,
    utils,
)
from kfp.local.orchestrator import enhanced_dag_orchestrator
from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils
from kfp.pipeline_spec import pipeline_spec_pb2

from contracts.canonical import canonical
from contracts.errors import ShardlineError
from rehearsal.pipelines.conditions import evaluate
from rehearsal.pipelines.containers import Containers, ContainerTask, TaskFailed
from rehearsal.pipelines.kfp_values import find_missing, find_oversized, read_outputs, split_values
from rehearsal.pipelines.placeholders import has_placeholder, substitute_all
from rehearsal.pipelines.reports import CANCELLED, FAILED_PRECONDITION, Path, Reporter, error_of

_COMPLETED = pipeline_spec_pb2.PipelineTaskSpec.TriggerPolicy.TriggerStrategy.ALL_UPSTREAM_TASKS_COMPLETED
_SUCCESS, _FAILURE = status.Status.SUCCESS, status.Status.FAILURE
# What kfp raises for a specification or a value that it cannot use, and what the parts here do.
_TASK_ERRORS = (TaskFailed, ShardlineError, ValueError, KeyError, TypeError, IndexError, RuntimeError, OSError)
# Of kfp for the iterations of a ParallelFor: it makes the nested name itself there.
_ITERATION = "-iteration-"
_EXIT_HANDLER = re.compile(r"exit-handler-\d+")

Result = tuple[dict[str, Any], status.Status]


class Orchestration:
    """One pipeline on kfp.local's orchestrator.

    Args:
        containers: Run its tasks.
        reporter: Told what becomes of them.
    """

    def __init__(self, containers: Containers, reporter: Reporter) -> None:
        self._containers, self._reporter = containers, reporter
        self._original = enhanced_dag_orchestrator.execute_task
        self._specs: dict[Path, Any] = {}
        self._errors: dict[Path, dict[str, Any]] = {}
        self._exits: set[Path] = set()

    def run(self) -> bool:
        """Execute the pipeline; whether it succeeded."""
        job = self._containers.job
        spec = json_format.ParseDict(job.spec, pipeline_spec_pb2.PipelineSpec(), ignore_unknown_fields=True)
        executors = {
            name: utils.struct_to_executor_spec(executor)
            for name, executor in spec.deployment_spec["executors"].items()
        }
        self._reporter.task((), "RUNNING")
        with self._applied():
            _, ended = enhanced_dag_orchestrator.run_enhanced_dag(
                pipeline_resource_name=job.id,
                dag_component_spec=spec.root,
                executors=executors,
                components=dict(spec.components.items()),
                dag_arguments=job.parameters,
                pipeline_root=job.pipeline_root,
                runner=None,
                unique_pipeline_id=job.uuid,
                fail_stack=[],
            )
        self._close_dag((), spec.root)
        if self._containers.cancelled.is_set():
            self._reporter.task((), "CANCELLED", error=error_of(CANCELLED, "the run was cancelled"))
        elif ended is _SUCCESS:
            self._reporter.task((), "SUCCEEDED")
        else:
            self._reporter.task((), "FAILED", error=self.error(()))
        return bool(ended is _SUCCESS)

    def error(self, dag: Path) -> dict[str, Any]:
        """Return why a DAG failed, as Vertex tells it: by the names of the tasks that did."""
        failed = [path[-1] for path in self._errors if path[:-1] == dag]
        return error_of(FAILED_PRECONDITION, f"the DAG failed because these of its tasks did: {', '.join(failed)}")

    @contextlib.contextmanager
    def _applied(self) -> Iterator[None]:
        evaluator = enhanced_dag_orchestrator.ConditionEvaluator
        replaced: list[tuple[Any, str, Any]] = [
            (enhanced_dag_orchestrator, "execute_task", self._execute_task),
            (evaluator, "evaluate_condition", staticmethod(lambda condition, io_store: True)),
            (task_dispatcher, "run_single_task_implementation", self._run_container),
            (importer_handler, "run_importer", self._run_importer),
        ]
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
        for owner, name, ours in replaced:
            setattr(owner, name, ours)
        try:
            yield
        finally:
            for owner, name, theirs in before:
                setattr(owner, name, theirs)

    # --- one task -----------------------------------------------------------------------------------------------------

    def _execute_task(
        self, task_name: str, task_spec: Any, pipeline_resource_name: str, components: Any, io_store: Any, **more: Any
    ) -> Result:
        path = (*pipeline_resource_name.split("/")[1:], task_name)
        component = components[task_spec.component_ref.name]
        anyway = task_spec.trigger_policy.strategy == _COMPLETED
        if _is_exit_task(task_spec):
            self._exits.add(path)
        if self._is_stopped(path):
            return {}, _FAILURE
        spec = pipeline_spec_pb2.PipelineTaskSpec()
        spec.CopyFrom(task_spec)
        is_dag = component.WhichOneof("implementation") == "dag"
        try:
            for group, name, producer, output in find_missing(spec, io_store):
                if anyway:
                    # The component's default stands in.
                    del getattr(spec.inputs, group)[name]
                elif self._reporter.states.get((*path[:-1], producer)) == "NOT_TRIGGERED":
                    return self._not_triggered(path)
                else:
                    raise TaskFailed(f"output {output} of task {producer} was not written")
            arguments = OrchestratorUtils.make_task_arguments(spec.inputs, io_store)
            if (condition := spec.trigger_policy.condition) and not evaluate(condition, arguments):
                return self._not_triggered(path)
            parameters, artifacts = split_values(arguments)
            self._reporter.task(path, "PENDING", inputs=parameters, artifacts_in=artifacts)
            if is_dag:
                self._reporter.task(path, "RUNNING")
                self._resolve_constants(path, spec, component, parameters)
            self._specs[path] = spec
            name = pipeline_resource_name
            if not (is_dag and _ITERATION in task_name):
                name = f"{name}/{task_name}"
            outputs, ended = self._original(
                task_name=task_name,
                task_spec=spec,
                pipeline_resource_name=name,
                components=components,
                io_store=io_store,
                **more,
            )
            if ended is _SUCCESS and (said := find_oversized(outputs)):
                raise TaskFailed(said)
        except _TASK_ERRORS as error:
            self._errors[path] = error_of(FAILED_PRECONDITION, _describe(error))
            outputs, ended = {}, _FAILURE
        if is_dag:
            self._close_dag(path, component)
        self._report_end(path, component, outputs, succeeded=ended is _SUCCESS)
        return outputs, ended

    def _is_stopped(self, path: Path) -> bool:
        if self._containers.cancelled.is_set():
            return True
        if not (self._containers.job.fails_fast and self._errors):
            return False
        # Of "will stop scheduling any new tasks when a task has failed" (PipelineFailurePolicy): a task that ignores
        # what happened before it is a new task too. An exit task is what runs in any case, with all that is in it.
        return not any(path[: len(exit)] == exit for exit in self._exits)

    def _not_triggered(self, path: Path) -> Result:
        self._reporter.task(path, "NOT_TRIGGERED")
        return {}, _SUCCESS

    def _report_end(self, path: Path, component: Any, outputs: dict[str, Any], *, succeeded: bool) -> None:
        if self._containers.cancelled.is_set():
            # A launcher that was told to stop ends with 0: that is no success.
            self._errors.setdefault(path, error_of(CANCELLED, "the run was cancelled"))
            self._reporter.task(path, "CANCELLED", error=self._errors[path])
        elif succeeded:
            parameters, artifacts = split_values(outputs)
            for name, entries in artifacts.items():
                declared = component.output_definitions.artifacts[name].artifact_type
                for entry in entries:
                    entry["schema_title"] = declared.schema_title or entry["schema_title"]
                    entry["schema_version"] = declared.schema_version or entry["schema_version"]
            self._reporter.task(path, "SUCCEEDED", outputs=parameters, artifacts_out=artifacts)
        else:
            self._reporter.task(path, "FAILED", error=self._errors.setdefault(path, self.error(path)))

    def _close_dag(self, path: Path, component: Any) -> None:
        """Say of the tasks that nothing came to that they were not triggered."""
        for name, spec in component.dag.tasks.items():
            inner = (*path, name)
            if inner not in self._reporter.states and not spec.WhichOneof("iterator"):
                self._reporter.task(inner, "NOT_TRIGGERED")

    def _resolve_constants(self, path: Path, spec: Any, component: Any, parameters: dict[str, Any]) -> None:
        """Replace placeholders in what the specification passes to a DAG: inside, its channels have other names."""
        values = self._containers.values(path, {"inputs": {"parameterValues": parameters}}, _optional(component))
        for name, given in spec.inputs.parameters.items():
            if given.HasField("runtime_value") and has_placeholder(parameters[name]):
                constant = pipeline_spec_builder.to_protobuf_value(substitute_all(parameters[name], values))
                given.runtime_value.constant.CopyFrom(constant)

    # --- what a task runs ---------------------------------------------------------------------------------------------

    def _run_container(
        self,
        pipeline_resource_name: str,
        component_spec: Any,
        executor_spec: Any,
        arguments: dict[str, Any],
        **_: Any,
    ) -> Result:
        path = tuple(pipeline_resource_name.split("/")[1:])
        containers, spec = self._containers, self._specs[path]
        arguments = {**arguments, **self._final_status(spec, path, arguments)}
        message = executor_input_utils.construct_executor_input(
            component_spec=component_spec,
            arguments={name: canonical(value) for name, value in arguments.items()},
            task_root=containers.task_root(path),
            block_input_artifact=False,
        )
        container = executor_spec.container
        task = ContainerTask(
            path=path,
            image=container.image,
            words=[*container.command, *container.args],
            env={variable.name: variable.value for variable in container.env},
            executor_input=executor_input_utils.executor_input_to_dict(message, component_spec),
            live=frozenset(
                name
                for name in message.inputs.parameter_values
                if name not in spec.inputs.parameters or spec.inputs.parameters[name].HasField("runtime_value")
            ),
            optional=_optional(component_spec),
        )
        try:
            containers.run(task)
        except _TASK_ERRORS as error:
            # Not raised: kfp tries again where the task has a retry policy.
            self._errors[path] = error_of(FAILED_PRECONDITION, _describe(error))
            return {}, _FAILURE
        self._errors.pop(path, None)
        return read_outputs(containers.mount, message, component_spec), _SUCCESS

    def _final_status(self, spec: Any, path: Path, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of an exit task that tell how what it waited for ended, as Vertex writes them."""
        found = {}
        for name, given in spec.inputs.parameters.items():
            if given.HasField("task_final_status"):
                producer = given.task_final_status.producer_task
                failed = arguments[name]["state"] != "SUCCEEDED"
                found[name] = {
                    "state": arguments[name]["state"],
                    "pipelineJobResourceName": self._containers.job.name,
                    "pipelineTaskName": producer,
                    "error": self._errors.get((*path[:-1], producer), {}) if failed else {},
                }
        return found

    def _run_importer(
        self, pipeline_resource_name: str, component_spec: Any, executor_spec: Any, arguments: dict[str, Any], **_: Any
    ) -> Result:
        path = tuple(pipeline_resource_name.split("/")[1:])
        self._reporter.task(path, "RUNNING", attempt=1)
        importer = executor_spec.importer
        spec = self._specs[path]
        optional = _optional(component_spec)
        found = {"inputs": {"parameterValues": canonical(split_values(arguments)[0])}}
        values = self._containers.values(path, found, optional)
        given = {
            name: substitute_all(value, values) if spec.inputs.parameters[name].HasField("runtime_value") else value
            for name, value in split_values(arguments)[0].items()
        }
        values = self._containers.values(path, {"inputs": {"parameterValues": canonical(given)}}, optional)
        constant = importer.artifact_uri.WhichOneof("value") == "constant"
        uri = importer.artifact_uri.constant.string_value if constant else given["uri"]
        if has_placeholder(uri):
            raise TaskFailed(f"the importer's URI is not a value but {uri!r}: pass a parameter or an output")
        metadata = canonical(substitute_all(json_format.MessageToDict(importer.metadata), values))
        kind = importer_handler.get_artifact_class_from_schema_title(importer.type_schema.schema_title)
        return {"artifact": kind(name="artifact", uri=uri, metadata=metadata)}, _SUCCESS


def _optional(component: Any) -> frozenset[str]:
    """Return the input parameters that a component declares optional."""
    return frozenset(name for name, declared in component.input_definitions.parameters.items() if declared.is_optional)


def _is_exit_task(spec: Any) -> bool:
    """Whether a task is the one of a dsl.ExitHandler, which kfp compiles to a task after the handler's group."""
    return spec.trigger_policy.strategy == _COMPLETED and any(map(_EXIT_HANDLER.fullmatch, spec.dependent_tasks))


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, (TaskFailed, ShardlineError)) else f"{type(error).__name__}: {error}"
