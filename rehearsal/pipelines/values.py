"""Inputs and outputs of tasks by the compiled specification, as JSON values.

Everything is in the JSON form of pipeline_spec.proto with camelCase names (kubeflow/pipelines, api/v2alpha1), in which
spec.normalise brings a specification. A value that is null counts as not given, as the proto says of optional inputs.
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
    """Return the names of the tasks of the same DAG that a task waits for."""
    found = set(task.get("dependentTasks", ()))
    inputs = task.get("inputs", {})
    for source in [*inputs.get("parameters", {}).values(), *inputs.get("artifacts", {}).values()]:
        found |= {kind["producerTask"] for kind in source.values() if isinstance(kind, dict) and "producerTask" in kind}
    return found


def declared_inputs(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions of a component's input parameters by name."""
    found: dict[str, Any] = component.get("inputDefinitions", {}).get("parameters", {})
    return found


def resolve_inputs(
    task: Mapping[str, Any],
    component: Mapping[str, Any],
    parent: Data,
    produced: Mapping[str, Data],
    *,
    tolerant: bool = False,
) -> tuple[Data, frozenset[str]]:
    """Return a task's inputs, and the names of the parameters that the specification itself gives.

    In those placeholders are meant and still to be replaced; a value that looks like one and comes from elsewhere
    stays as it is. The component's defaults stand in for what is not given.

    Args:
        task: PipelineTaskSpec.
        component: Its ComponentSpec.
        parent: Inputs of the DAG that it is in.
        produced: Outputs of the DAG's tasks so far.
        tolerant: It runs whatever became of the tasks before it: an output that is not there counts as not given.

    Raises:
        TaskFailed: It needs an output that is not there.
    """
    found, live = Data(), set()
    for name, source in task.get("inputs", {}).get("parameters", {}).items():
        value = _find_parameter(source, parent, produced, tolerant=tolerant)
        if value is not None:
            found.parameters[name] = value
            if "runtimeValue" in source:
                live.add(name)
    for name, definition in declared_inputs(component).items():
        if name not in found.parameters and definition.get("defaultValue") is not None:
            found.parameters[name] = definition["defaultValue"]
            live.add(name)
    for name, source in task.get("inputs", {}).get("artifacts", {}).items():
        wanted = source["taskOutputArtifact"]
        producer, output = wanted["producerTask"], wanted["outputArtifactKey"]
        artifact = _written(produced.get(producer, Data()).artifacts, producer, output, tolerant=tolerant)
        if artifact is not None:
            found.artifacts[name] = artifact
    return found, frozenset(live)


def _find_parameter(source: Mapping[str, Any], parent: Data, produced: Mapping[str, Data], *, tolerant: bool) -> Any:
    if "runtimeValue" in source:
        return source["runtimeValue"]["constant"]
    if "componentInputParameter" in source:
        return parent.parameters.get(source["componentInputParameter"])
    if "taskOutputParameter" in source:
        wanted = source["taskOutputParameter"]
        producer, output = wanted["producerTask"], wanted["outputParameterKey"]
        return _written(produced.get(producer, Data()).parameters, producer, output, tolerant=tolerant)
    # taskFinalStatus: the walk knows it.
    return None


def _written(outputs: Mapping[str, Any], producer: str, output: str, *, tolerant: bool) -> Any:
    if outputs.get(output) is None and not tolerant:
        raise TaskFailed(f"output {output} of task {producer} was not written")
    return outputs.get(output)


def fit(name: str, value: Any, kind: str) -> Any:
    """Return an input parameter's value in the type that its component declares, whole numbers as integers.

    What is no text becomes its JSON where a text is declared, as in kfp's driver; nothing else is converted.

    Args:
        name: The parameter, for messages.
        value: Its value.
        kind: A parameterType; one that is not known allows everything.

    Raises:
        TaskFailed: It has another type.
    """
    value, wanted = canonical(value), _TYPES.get(kind, object)
    if kind == "STRING" and not isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted in (_TYPES["NUMBER_INTEGER"], _NUMBER)):
        raise TaskFailed(f"input {name} is {str(value)[:200]!r}, and its component declares {kind}")
    return value
