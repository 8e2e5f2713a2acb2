"""Resolution of task inputs from the compiled specification, as JSON values.

Specifications are in the JSON form of pipeline_spec.proto with camelCase names (kubeflow/pipelines, api/v2alpha1), from
spec.normalise. As in the proto, null means that an optional input is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.canonical import canonical

_NUMBER = (int, float)
_TYPES: dict[str, Any] = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": _NUMBER,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
    "TASK_FINAL_STATUS": dict,
}


class TaskFailed(Exception):
    """A task ended with an error, or could not be run; the message is for the user."""


@dataclass
class Data:
    """Inputs or outputs of a task by name."""

    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON values."""
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """RuntimeArtifacts as JSON: name, uri, type, metadata."""


def upstream_of(task: Mapping[str, Any]) -> set[str]:
    """Return the names of a task's upstream tasks in the same DAG."""
    names = set(task.get("dependentTasks", ()))
    inputs = task.get("inputs", {})
    for source in [*inputs.get("parameters", {}).values(), *inputs.get("artifacts", {}).values()]:
        names |= {kind["producerTask"] for kind in source.values() if isinstance(kind, dict) and "producerTask" in kind}
    return names


def input_definitions(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions of a component's input parameters by name."""
    definitions: dict[str, Any] = component.get("inputDefinitions", {}).get("parameters", {})
    return definitions


def optional_inputs(component: Mapping[str, Any]) -> frozenset[str]:
    """Return the input parameters that a component declares optional."""
    return frozenset(name for name, definition in input_definitions(component).items() if definition.get("isOptional"))


def resolve_inputs(
    task: Mapping[str, Any],
    component: Mapping[str, Any],
    parent: Data,
    produced: Mapping[str, Data],
    *,
    ignores_failures: bool = False,
) -> tuple[Data, frozenset[str]]:
    """Return a task's inputs, and the names of the parameters whose placeholders must be replaced.

    Only values in the specification have placeholders; other values that look like one stay unchanged. Missing inputs
    get the component's defaults.

    `parent` has the inputs of the DAG. With `ignores_failures`, missing outputs count as missing inputs.

    Raises:
        TaskFailed: A required output does not exist.
    """
    inputs, specified = Data(), set()
    for name, source in task.get("inputs", {}).get("parameters", {}).items():
        value = None
        if "runtimeValue" in source:
            value = source["runtimeValue"]["constant"]
            specified.add(name)
        elif "componentInputParameter" in source:
            value = parent.parameters.get(source["componentInputParameter"])
        elif "taskOutputParameter" in source:
            reference = source["taskOutputParameter"]
            producer, output = reference["producerTask"], reference["outputParameterKey"]
            value = produced.get(producer, Data()).parameters.get(output)
            _require(value, producer, output, ignores_failures)
        if value is not None:
            inputs.parameters[name] = value
    for name, definition in input_definitions(component).items():
        if name not in inputs.parameters and definition.get("defaultValue") is not None:
            inputs.parameters[name] = definition["defaultValue"]
            specified.add(name)
    for name, source in task.get("inputs", {}).get("artifacts", {}).items():
        reference = source["taskOutputArtifact"]
        producer, output = reference["producerTask"], reference["outputArtifactKey"]
        artifact = produced.get(producer, Data()).artifacts.get(output)
        _require(artifact, producer, output, ignores_failures)
        if artifact is not None:
            inputs.artifacts[name] = artifact
    return inputs, frozenset(specified & inputs.parameters.keys())


def _require(value: Any, producer: str, output: str, ignores_failures: bool) -> None:
    if value is None and not ignores_failures:
        raise TaskFailed(f"output {output} of task {producer} was not written")


def require_inputs(component: Mapping[str, Any], inputs: Data) -> None:
    """Raise TaskFailed if a required input is missing."""
    for group, present in (("parameters", inputs.parameters), ("artifacts", inputs.artifacts)):
        for name, definition in component.get("inputDefinitions", {}).get(group, {}).items():
            if not definition.get("isOptional") and name not in present:
                raise TaskFailed(f"input {name} has no value, and its component declares no default")


def fit(name: str, value: Any, kind: str) -> Any:
    """Return an input parameter's value in its declared type, whole numbers as integers.

    For STRING, other types are converted to JSON, as in kfp's driver; there are no other conversions. An unknown `kind`
    accepts everything.

    Raises:
        TaskFailed: It has another type.
    """
    value, expected_type = canonical(value), _TYPES.get(kind, object)
    if kind == "STRING" and not isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, expected_type) or (isinstance(value, bool) and expected_type in (int, _NUMBER)):
        raise TaskFailed(f"input {name} is {str(value)[:200]!r}, and its component declares {kind}")
    return value
