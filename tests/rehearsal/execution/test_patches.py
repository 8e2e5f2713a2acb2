"""What of kfp's own is replaced or used as it is, so that a change of kfp is noticed here first."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
from typing import Any

import pytest
from kfp.compiler import pipeline_spec_builder
from kfp.local import (
    executor_input_utils,
    executor_output_utils,
    importer_handler,
    io,
    subprocess_task_handler,
    task_dispatcher,
)
from kfp.local.orchestrator import enhanced_dag_orchestrator, orchestrator_utils, task_executor

# By what kfp calls ours with, and what ours call of kfp's with.
SIGNATURES: list[tuple[Any, list[str]]] = [
    (
        enhanced_dag_orchestrator.execute_task,
        [
            "task_name",
            "task_spec",
            "pipeline_resource_name",
            "components",
            "executors",
            "io_store",
            "pipeline_root",
            "runner",
            "unique_pipeline_id",
            "fail_stack",
        ],
    ),
    (
        enhanced_dag_orchestrator.run_enhanced_dag,
        [
            "pipeline_resource_name",
            "dag_component_spec",
            "executors",
            "components",
            "dag_arguments",
            "pipeline_root",
            "runner",
            "unique_pipeline_id",
            "fail_stack",
            "parent_io_store",
        ],
    ),
    (enhanced_dag_orchestrator.ConditionEvaluator.evaluate_condition, ["condition", "io_store"]),
    (
        task_dispatcher.run_single_task_implementation,
        [
            "pipeline_resource_name",
            "component_name",
            "component_spec",
            "executor_spec",
            "arguments",
            "pipeline_root",
            "runner",
            "raise_on_error",
            "block_input_artifact",
            "unique_pipeline_id",
        ],
    ),
    (
        importer_handler.run_importer,
        [
            "pipeline_resource_name",
            "component_name",
            "component_spec",
            "executor_spec",
            "arguments",
            "pipeline_root",
            "unique_pipeline_id",
        ],
    ),
    (importer_handler.get_artifact_class_from_schema_title, ["schema_title"]),
    (orchestrator_utils.OrchestratorUtils.make_task_arguments, ["task_inputs_spec", "io_store"]),
    (
        executor_input_utils.construct_executor_input,
        ["component_spec", "arguments", "task_root", "block_input_artifact"],
    ),
    (executor_input_utils.executor_input_to_dict, ["executor_input", "component_spec"]),
    (executor_output_utils.load_executor_output, ["executor_output_path"]),
    (
        executor_output_utils.get_outputs_from_executor_output,
        ["executor_output", "executor_input", "component_spec"],
    ),
    (pipeline_spec_builder.to_protobuf_value, ["value"]),
    (io.IOStore.get_task_output, ["self", "task_name", "key"]),
]


def test_the_version_that_this_was_written_for() -> None:
    assert importlib.metadata.version("kfp").startswith("2.17."), "read the functions below again, then this line"


@pytest.mark.parametrize(("function", "names"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_signatures(function: Any, names: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == names


@pytest.mark.parametrize(
    ("caller", "looked_up"),
    [
        (enhanced_dag_orchestrator.run_enhanced_dag, "execute_task("),
        (enhanced_dag_orchestrator.run_enhanced_dag, "condition_evaluator.evaluate_condition("),
        (task_executor.execute_single_task, "task_dispatcher.run_single_task_implementation("),
        (task_executor.execute_single_task, "importer_handler.run_importer("),
    ],
)
def test_they_are_looked_up_where_they_are_replaced(caller: Any, looked_up: str) -> None:
    assert looked_up in inspect.getsource(caller)


def test_why_conditions_are_replaced() -> None:
    store = io.IOStore()
    store.put_parent_input("p", "it's")
    evaluate = enhanced_dag_orchestrator.ConditionEvaluator.evaluate_condition
    # What cannot be read is false there: a gate would look closed. When this fails, kfp has learnt it.
    assert evaluate("inputs.parameter_values['p'] == 'yes'", store) is False


def test_why_tasks_are_replaced() -> None:
    words = ["python3", "-c", json.dumps("a folder called python3")]
    replaced = subprocess_task_handler.replace_python_executable(words, "/interpreter")
    assert replaced[2] == '"a folder called /interpreter"'
    with pytest.raises(RuntimeError, match="Container Component"):
        subprocess_task_handler.SubprocessTaskHandler("python", ["echo"], "root", None)
