"""Compiled specifications: normalisation, and detection of unsupported fields.

The rehearsal executes the output of `shardline compile`, including Google's launchers: tasks of container components in
one DAG, with or without an exit handler. Specifications with other fields are refused at submission.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from contracts.canonical import canonical
from rehearsal.pipelines.placeholders import find_unknown

_SOURCES = {"componentInputParameter": None, "taskOutputParameter": None, "taskFinalStatus": None}
_TASK = {
    "taskInfo": None,
    "componentRef": None,
    "dependentTasks": None,
    "inputs": {
        "parameters": {"*": {"runtimeValue": {"constant": None}, **_SOURCES}},
        "artifacts": {"*": {"taskOutputArtifact": None}},
    },
    "cachingOptions": {"enableCache": None},
    "triggerPolicy": {"strategy": None},
}
_PARAMETER = {"parameterType": None, "defaultValue": None, "isOptional": None, "description": None}
_DEFINITIONS = {"parameters": {"*": _PARAMETER}, "artifacts": {"*": {"artifactType": None, "description": None}}}
_CONTAINER = {"image": None, "command": None, "args": None, "env": None, "resources": None}
_COMPONENT = {
    "executorLabel": None,
    "inputDefinitions": _DEFINITIONS,
    "outputDefinitions": _DEFINITIONS,
    "dag": {"tasks": {"*": _TASK}},
}
# Supported fields of PipelineSpec (pipeline_spec.proto), including those without effect. None: all fields below.
_SUPPORTED: dict[str, Any] = {
    "pipelineInfo": None,
    "schemaVersion": None,
    "sdkVersion": None,
    "defaultPipelineRoot": None,
    "root": _COMPONENT,
    "components": {"*": _COMPONENT},
    "deploymentSpec": {"executors": {"*": {"container": _CONTAINER}}},
}
_EXIT_HANDLER = re.compile(r"exit-handler-\d+")
_PYTHON_COMPONENT = "kfp.dsl.executor_main"
# Prefixes of compiled ConcatPlaceholder and IfPresentPlaceholder arguments.
_COMPOSED = ('{"Concat": ', '{"IfPresent": ')


def normalise(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with camelCase names, whole numbers as integers, and without unknown fields.

    Raises:
        google.protobuf.json_format.ParseError: It is not a PipelineSpec.
    """
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    normalised: dict[str, Any] = _as_json(spec, messages.PipelineSpec())
    deployment, executor = normalised.setdefault("deploymentSpec", {}), messages.PipelineDeploymentConfig.ExecutorSpec
    executors = deployment.get("executors", {})
    deployment["executors"] = {name: _as_json(executor_spec, executor()) for name, executor_spec in executors.items()}
    return normalised


def _as_json(value: Mapping[str, Any], message: Any) -> Any:
    return canonical(json_format.MessageToDict(json_format.ParseDict(value, message, ignore_unknown_fields=True)))


def find_unsupported(spec: Mapping[str, Any]) -> list[str]:
    """Return messages about unsupported parts of a submitted specification.

    Raises:
        google.protobuf.json_format.ParseError: It is not a PipelineSpec.
    """
    normalised = normalise(spec)
    reasons = list(_find_unsupported_fields(normalised, _SUPPORTED, ""))
    for label, executor in normalised["deploymentSpec"]["executors"].items():
        reasons += [f"executor {label}: {reason}" for reason in _check_container(executor.get("container"))]
    components = {"root": normalised.get("root", {}), **normalised.get("components", {})}
    for name, component in components.items():
        reasons += [f"component {name}: {reason}" for reason in _check_component(name, component, components)]
    return reasons


def _find_unsupported_fields(value: Mapping[str, Any], supported: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, inner in value.items():
        if name not in supported and "*" not in supported:
            yield f"{path}{name}"
        elif (below := supported.get(name, supported.get("*"))) is not None:
            yield from _find_unsupported_fields(inner, below, f"{path}{name}.")


def _check_container(container: Mapping[str, Any] | None) -> Iterator[str]:
    if container is None:
        return
    if _PYTHON_COMPONENT in json.dumps(container):
        yield "a Python component (@dsl.component): use a container component"
    yield from (f"the placeholder {placeholder}" for placeholder in find_unknown(container))
    command = container.get("command", [])
    if not command:
        yield f"no command for image {container.get('image', '')}: set one, images are not pulled"
    if any(argument.startswith(_COMPOSED) for argument in [*command, *container.get("args", [])]):
        yield "a composed argument (dsl.ConcatPlaceholder, dsl.IfPresentPlaceholder)"


def _check_component(name: str, component: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"the placeholder {placeholder}" for placeholder in find_unknown(component))
    for output, definition in component.get("outputDefinitions", {}).get("parameters", {}).items():
        if definition.get("parameterType") != "STRING":
            yield f"parameter {output}: an output that is not text"
    for task, body in component.get("dag", {}).get("tasks", {}).items():
        is_handler = name == "root" and _EXIT_HANDLER.fullmatch(task)
        if not is_handler and "dag" in components[body["componentRef"]["name"]]:
            yield f"task {task}: a group of tasks (a condition, a loop, a pipeline in a pipeline)"
