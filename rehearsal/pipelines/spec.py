"""Compiled specifications: one form of them, and what is in them that the rehearsal does not execute.

It executes what `shardline compile` writes, and Google's launchers in it: tasks of container components in one DAG, in
an exit handler or not. All else is refused when it is submitted, by the name of its field.
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
# Fields of PipelineSpec (pipeline_spec.proto) that are executed, or say nothing of it. None: all below.
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
# Words of a command that kfp's ConcatPlaceholder and IfPresentPlaceholder become.
_COMPOSED = ('{"Concat": ', '{"IfPresent": ')


def normalise(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with the camelCase names of JSON, whole numbers as integers, unknown fields left out.

    Raises:
        google.protobuf.json_format.ParseError: It is no PipelineSpec.
    """
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    normalised: dict[str, Any] = _as_json(spec, messages.PipelineSpec())
    deployment, executor = normalised.setdefault("deploymentSpec", {}), messages.PipelineDeploymentConfig.ExecutorSpec
    executors = deployment.get("executors", {})
    deployment["executors"] = {name: _as_json(given, executor()) for name, given in executors.items()}
    return normalised


def _as_json(value: Mapping[str, Any], message: Any) -> Any:
    return canonical(json_format.MessageToDict(json_format.ParseDict(value, message, ignore_unknown_fields=True)))


def find_unsupported(spec: Mapping[str, Any]) -> list[str]:
    """Return what a submitted specification has that the rehearsal does not execute, each named by its field.

    Raises:
        google.protobuf.json_format.ParseError: It is no PipelineSpec.
    """
    known = normalise(spec)
    reasons = list(_beyond(known, _SUPPORTED, ""))
    for label, executor in known["deploymentSpec"]["executors"].items():
        reasons += [f"executor {label}: {reason}" for reason in _of_container(executor.get("container"))]
    components = {"root": known.get("root", {}), **known.get("components", {})}
    for name, component in components.items():
        reasons += [f"component {name}: {reason}" for reason in _of_component(name, component, components)]
    return reasons


def _beyond(value: Mapping[str, Any], supported: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of fields that are not supported."""
    for name, inner in value.items():
        if name not in supported and "*" not in supported:
            yield f"{path}{name}"
        elif (below := supported.get(name, supported.get("*"))) is not None:
            yield from _beyond(inner, below, f"{path}{name}.")


def _of_container(container: Mapping[str, Any] | None) -> Iterator[str]:
    if container is None:
        return
    if _PYTHON_COMPONENT in json.dumps(container):
        yield "a Python component (@dsl.component): use a container component"
    yield from (f"the placeholder {placeholder}" for placeholder in find_unknown(container))
    words = container.get("command", [])
    if not words:
        yield f"the own command of image {container.get('image', '')}: name a command, images are not fetched"
    if any(word.startswith(_COMPOSED) for word in [*words, *container.get("args", [])]):
        yield "a composed word (dsl.ConcatPlaceholder, dsl.IfPresentPlaceholder)"


def _of_component(name: str, component: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"the placeholder {placeholder}" for placeholder in find_unknown(component))
    for output, definition in component.get("outputDefinitions", {}).get("parameters", {}).items():
        if definition.get("parameterType") != "STRING":
            yield f"parameter {output}: an output that is no text"
    for task, body in component.get("dag", {}).get("tasks", {}).items():
        is_handler = name == "root" and _EXIT_HANDLER.fullmatch(task)
        if not is_handler and "dag" in components[body["componentRef"]["name"]]:
            yield f"task {task}: a group of tasks (a condition, a loop, a pipeline in a pipeline)"
