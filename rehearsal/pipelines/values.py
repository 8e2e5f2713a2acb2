"""Inputs and outputs of tasks by the compiled specification, as JSON values.

Everything is in the JSON form of pipeline_spec.proto with camelCase names (kubeflow/pipelines, api/v2alpha1), in which
spec.normalise brings a specification. A value that is null counts as not given, as the proto says of optional inputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.canonical import canonical

# kfp's compiler writes no other selector: the fields of a loop's items.
SELECTOR = re.compile(r"""parseJson\(string_value\)((?:\["[^"\]]*"\]|\['[^'\]]*'\]|\[\d+\])+)""")
_STEP = re.compile(r"""\["([^"]*)"\]|\['([^']*)'\]|\[(\d+)\]""")
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
    artifacts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """RuntimeArtifacts as JSON: name, uri, type, metadata; one, where the definition names no list."""


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
        TaskFailed: It needs an output that is not there, or a field that a value has not.
    """
    found, live = Data(), set()
    definitions = declared_inputs(component)
    for name, source in task.get("inputs", {}).get("parameters", {}).items():
        value = _find_parameter(source, parent, produced, tolerant=tolerant)
        if value is not None:
            found.parameters[name] = _select(value, source.get("parameterExpressionSelector", ""))
            if "runtimeValue" in source:
                live.add(name)
    for name, definition in definitions.items():
        if name not in found.parameters and definition.get("defaultValue") is not None:
            found.parameters[name] = definition["defaultValue"]
            live.add(name)
    for name, source in task.get("inputs", {}).get("artifacts", {}).items():
        artifacts = _find_artifacts(source, parent, produced, tolerant=tolerant)
        if artifacts is not None:
            found.artifacts[name] = artifacts
    return found, frozenset(live)


def _find_parameter(source: Mapping[str, Any], parent: Data, produced: Mapping[str, Data], *, tolerant: bool) -> Any:
    if "runtimeValue" in source:
        given = source["runtimeValue"]
        if "runtimeParameter" in given:
            return parent.parameters.get(given["runtimeParameter"])
        # The deprecated form has its type beside it.
        return given["constant"] if "constant" in given else next(iter(given.get("constantValue", {}).values()), None)
    if "componentInputParameter" in source:
        return parent.parameters.get(source["componentInputParameter"])
    if "taskOutputParameter" in source:
        wanted = source["taskOutputParameter"]
        producer, output = wanted["producerTask"], wanted["outputParameterKey"]
        return _written(produced.get(producer, Data()).parameters, producer, output, tolerant=tolerant)
    # taskFinalStatus: the walk knows it.
    return None


def _find_artifacts(
    source: Mapping[str, Any], parent: Data, produced: Mapping[str, Data], *, tolerant: bool
) -> list[dict[str, Any]] | None:
    if "componentInputArtifact" in source:
        return parent.artifacts.get(source["componentInputArtifact"])
    wanted = source["taskOutputArtifact"]
    producer, output = wanted["producerTask"], wanted["outputArtifactKey"]
    found: list[dict[str, Any]] | None = _written(
        produced.get(producer, Data()).artifacts, producer, output, tolerant=tolerant
    )
    return found


def _written(outputs: Mapping[str, Any], producer: str, output: str, *, tolerant: bool) -> Any:
    if outputs.get(output) is None and not tolerant:
        raise TaskFailed(f"output {output} of task {producer} was not written")
    return outputs.get(output)


def _select(value: Any, selector: str) -> Any:
    if not selector:
        return value
    match = SELECTOR.fullmatch(selector)
    if match is None:
        raise TaskFailed(f"the selector {selector!r} of an input is not played")
    for keys in _STEP.findall(match.group(1)):
        key = next(filter(None, keys), "")
        try:
            value = json.loads(value) if isinstance(value, str) else value
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise TaskFailed(f"{value!r} has no {key!r}, which {selector} selects") from None
    return value


def fit(name: str, value: Any, definition: Mapping[str, Any]) -> Any:
    """Return an input parameter's value in the type that its component declares.

    What is no text becomes its JSON where a text is declared, as in kfp's driver; nothing else is converted.

    Raises:
        TaskFailed: It has another type, or is not among the literals that the component takes.
    """
    kind = definition.get("parameterType", "")
    if kind == "STRING" and not isinstance(value, str):
        value = json.dumps(canonical(value))
    value = check_type(f"input {name}", value, kind)
    literals = canonical(definition.get("literals", []))
    if literals and value not in literals:
        raise TaskFailed(f"input {name} is {value!r}, and its component takes one of {literals}")
    return value


def check_type(what: str, value: Any, kind: str) -> Any:
    """Return a parameter's value, whole numbers as integers.

    Args:
        what: The parameter, for messages.
        value: Its value.
        kind: A parameterType; one that is not known allows everything.

    Raises:
        TaskFailed: It is of another type.
    """
    value, wanted = canonical(value), _TYPES.get(kind, object)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted in (_TYPES["NUMBER_INTEGER"], _NUMBER)):
        raise TaskFailed(f"{what} is {str(value)[:200]!r}, and its component declares {kind}")
    return value


def read_parameter(name: str, text: str, kind: str) -> Any:
    """Return an output parameter's value from a container's file: a text as it is, all else is JSON; or TaskFailed."""
    if kind == "STRING":
        return text
    try:
        value = json.loads(text.lower() if kind == "BOOLEAN" else text)
    except ValueError:
        raise TaskFailed(f"output {name} is {text[:200]!r}, and its component declares {kind}") from None
    return check_type(f"output {name}", value, kind)


def loop_items(task: Mapping[str, Any], inputs: Data) -> list[Data]:
    """Return the inputs of each iteration of a task with an iterator, in the order of the items.

    Raises:
        TaskFailed: What is iterated over is no list.
    """
    if "artifactIterator" in task:
        iterator = task["artifactIterator"]
        return [
            Data(dict(inputs.parameters), {**inputs.artifacts, iterator["itemInput"]: [artifact]})
            for artifact in inputs.artifacts.get(iterator["items"]["inputArtifact"], [])
        ]
    iterator = task["parameterIterator"]
    items = iterator["items"]
    given = items["raw"] if "raw" in items else inputs.parameters.get(items["inputParameter"])
    try:
        values = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise TaskFailed(f"a loop runs over a list, and {items.get('inputParameter', 'its items')} is {given!r}")
    return [
        Data({**inputs.parameters, iterator["itemInput"]: canonical(item)}, dict(inputs.artifacts)) for item in values
    ]


def collect(iterations: Iterable[Data]) -> Data:
    """Return the outputs of a loop: a list of each parameter, and all artifacts of a name, in the items' order."""
    found = Data()
    for one in iterations:
        for name, value in one.parameters.items():
            found.parameters.setdefault(name, []).append(value)
        for name, artifacts in one.artifacts.items():
            found.artifacts.setdefault(name, []).extend(artifacts)
    return found


def dag_outputs(outputs: Mapping[str, Any], produced: Mapping[str, Data]) -> Data:
    """Return the outputs of a DAG from those of its tasks; what no task has written is left out.

    Raises:
        TaskFailed: Of several branches more than one has written what one of them is to write (DagOutputsSpec).
    """
    found = Data()
    for name, selected in outputs.get("parameters", {}).items():
        single = selected.get("valueFromParameter")
        selectors = [single] if single else selected.get("valueFromOneof", {}).get("parameterSelectors", [])
        given = [
            (produced.get(one["producerSubtask"], Data()).parameters, one["outputParameterKey"]) for one in selectors
        ]
        found.parameters |= _one_of(name, given)
    for name, selected in outputs.get("artifacts", {}).items():
        selectors = selected.get("artifactSelectors", [])
        given = [
            (produced.get(one["producerSubtask"], Data()).artifacts, one["outputArtifactKey"]) for one in selectors
        ]
        found.artifacts |= _one_of(name, given)
    return found


def _one_of(name: str, given: Iterable[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    written = [outputs[key] for outputs, key in given if key in outputs]
    if len(written) > 1:
        raise TaskFailed(f"output {name} is that of one branch, and {len(written)} of them have written it")
    return {name: written[0]} if written else {}
