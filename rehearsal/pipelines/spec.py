"""Compiled specifications: one form of them, and what is in them that the rehearsal does not play.

It plays what `shardline compile` writes, and Google's launchers in it: tasks of container components in one DAG, which
an exit handler may be around. All else is refused when it is submitted, by the name of its field; Vertex AI may
take it.
"""

from __future__ import annotations

import graphlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from contracts.canonical import canonical
from rehearsal.pipelines.placeholders import find_unknown
from rehearsal.pipelines.values import upstream_of

# Fields of a submitted specification that are a document for a platform, Kubernetes so far.
PLATFORM_FIELDS = ("platforms", "platformSpec", "platform_spec")
# By message of pipeline_spec.proto, the fields that are played or say nothing of the execution.
_PLAYED = {
    "executor": {"container"},
    "container": {"image", "command", "args", "env", "resources"},
    "dag": {"tasks"},
    "task": {"taskInfo", "componentRef", "inputs", "dependentTasks", "cachingOptions", "triggerPolicy"},
    "triggerPolicy": {"strategy"},
    "cachingOptions": {"enableCache"},
    "parameter": {"runtimeValue", "componentInputParameter", "taskOutputParameter", "taskFinalStatus"},
    "runtimeValue": {"constant"},
    "artifact": {"taskOutputArtifact"},
    "parameterDefinition": {"parameterType", "defaultValue", "isOptional", "description"},
    "artifactDefinition": {"artifactType", "description"},
}
_EXIT_HANDLER = re.compile(r"exit-handler-\d+")
_PYTHON_COMPONENT = "kfp.dsl.executor_main"
# Words of a command that kfp's ConcatPlaceholder and IfPresentPlaceholder become.
_WORD_STRUCTURES = ('{"Concat": ', '{"IfPresent": ')


def normalise(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with the camelCase names of JSON, whole numbers as integers, unknown fields left out.

    Raises:
        google.protobuf.json_format.ParseError: It is no PipelineSpec.
    """
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    found: dict[str, Any] = _as_json(spec, messages.PipelineSpec())
    deployment = found.setdefault("deploymentSpec", {})
    executor = messages.PipelineDeploymentConfig.ExecutorSpec
    deployment["executors"] = {
        name: _as_json(given, executor()) for name, given in deployment.get("executors", {}).items()
    }
    return found


def _as_json(value: Mapping[str, Any], message: Any) -> Any:
    return canonical(json_format.MessageToDict(json_format.ParseDict(value, message, ignore_unknown_fields=True)))


def find_refusals(spec: Mapping[str, Any]) -> list[str]:
    """Return what a submitted specification has that the rehearsal does not play, in words; none: it plays it.

    Raises:
        google.protobuf.json_format.ParseError: It is no PipelineSpec.
    """
    platforms = [name for name in PLATFORM_FIELDS if spec.get(name)]
    found = [f"{name}: a document for Kubernetes (the second one of a compiled file)" for name in platforms]
    known = normalise(spec)
    for label, executor in known["deploymentSpec"]["executors"].items():
        found += [f"executor {label}: {reason}" for reason in _of_executor(executor)]
    components = {"root": known.get("root", {}), **known.get("components", {})}
    for name, component in components.items():
        reasons = [*_of_definitions(component), *_of_dag(name, component.get("dag", {}), components)]
        found += [f"component {name}: {reason}" for reason in reasons]
    return list(dict.fromkeys(found))


def _unplayed(message: str, value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a message's fields that are not played."""
    yield from sorted(value.keys() - _PLAYED[message])


def _of_texts(value: Any) -> Iterator[str]:
    if _PYTHON_COMPONENT in json.dumps(value):
        yield "a Python component (@dsl.component): use a container component"
    for placeholder in find_unknown(value):
        yield f"the placeholder {placeholder}"


def _of_executor(executor: Mapping[str, Any]) -> Iterator[str]:
    yield from _unplayed("executor", executor)
    if (container := executor.get("container")) is None:
        return
    yield from _unplayed("container", container)
    yield from _of_texts(container)
    if not container.get("command"):
        yield f"the own command of image {container.get('image', '')}: name a command, images are not fetched"
    if any(word.startswith(_WORD_STRUCTURES) for word in [*container.get("command", []), *container.get("args", [])]):
        yield "a word that is put together (dsl.ConcatPlaceholder, dsl.IfPresentPlaceholder)"


def _of_definitions(component: Mapping[str, Any]) -> Iterator[str]:
    for side in ("inputDefinitions", "outputDefinitions"):
        definitions = component.get(side, {})
        for name, definition in definitions.get("parameters", {}).items():
            for reason in [*_unplayed("parameterDefinition", definition), *_of_texts(definition.get("defaultValue"))]:
                yield f"parameter {name}: {reason}"
            if side == "outputDefinitions" and definition.get("parameterType") != "STRING":
                yield f"parameter {name}: an output that is no text"
        for name, definition in definitions.get("artifacts", {}).items():
            for reason in _unplayed("artifactDefinition", definition):
                yield f"artifact {name}: {reason}"


def _of_dag(parent: str, dag: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[str]:
    yield from _unplayed("dag", dag)
    tasks = dag.get("tasks", {})
    graph = {name: upstream_of(task) for name, task in tasks.items()}
    for name, task in tasks.items():
        reasons = list(_of_task(task))
        component = components.get(task["componentRef"]["name"], {})
        is_handler = parent == "root" and _EXIT_HANDLER.fullmatch(name)
        # A loop or a condition is a group of its own, and a field of it has been named.
        if not reasons and not is_handler and "dag" in component:
            reasons.append("a pipeline in a pipeline")
        reasons += [f"it waits for {other}, which is not in its DAG" for other in sorted(graph[name] - graph.keys())]
        yield from (f"task {name}: {reason}" for reason in reasons)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"its tasks wait for each other: {' -> '.join(error.args[1])}"


def _of_task(task: Mapping[str, Any]) -> Iterator[str]:
    yield from _unplayed("task", task)
    for message in ("triggerPolicy", "cachingOptions"):
        yield from _unplayed(message, task.get(message, {}))
    inputs = task.get("inputs", {})
    for name, source in inputs.get("parameters", {}).items():
        value = source.get("runtimeValue", {})
        for reason in [*_unplayed("parameter", source), *_unplayed("runtimeValue", value), *_of_texts(value)]:
            yield f"parameter {name}: {reason}"
    for name, source in inputs.get("artifacts", {}).items():
        for reason in _unplayed("artifact", source):
            yield f"artifact {name}: {reason}"
