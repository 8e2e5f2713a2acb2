"""Compiled specifications: one form of them, and what is in them that the rehearsal does not play.

What is not played is refused by its name before anything runs; Vertex AI may take it.
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from contracts.canonical import canonical
from rehearsal.pipelines.packages import find_absent
from rehearsal.pipelines.values import SELECTOR, upstream_of

# Fields of a submitted specification that are a document for a platform, Kubernetes so far.
PLATFORM_FIELDS = ("platforms", "platformSpec", "platform_spec")
_WORKSPACE = ("{{$.workspace_path}}", "/kfp-workspace")


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
    if any(text in json.dumps(known) for text in _WORKSPACE):
        found.append("a workspace, which only Kubernetes has")
    for label, executor in known["deploymentSpec"]["executors"].items():
        found += [f"executor {label}: {said}" for said in _of_executor(executor)]
    components = known.get("components", {})
    for name, component in [("root", known.get("root", {})), *components.items()]:
        tasks = component.get("dag", {}).get("tasks", {})
        declared = component.get("inputDefinitions", {})
        found += [f"component {name}: {said}" for said in _of_dag(tasks, declared)]
        wanted = {task["componentRef"]["name"] for task in tasks.values()}
        found += [f"component {other}, which is not there" for other in sorted(wanted - components.keys())]
    return found


def _of_executor(executor: Mapping[str, Any]) -> Iterator[str]:
    container = executor.get("container")
    if container is None and "importer" not in executor:
        yield f"{', '.join(executor) or 'nothing'}; a container or an importer is played"
    if container is not None:
        if not container.get("command"):
            yield f"the own command of image {container.get('image', '')}: name a command, images are not fetched"
        if container.get("lifecycle"):
            yield "lifecycle hooks"
        for package in find_absent([*container.get("command", []), *container.get("args", [])]):
            yield f"it installs {package}, which is not installed here: install it, the rehearsal never does"
        if str(container.get("image", "")).startswith("oci://"):
            yield f"image {container['image']}: oci:// is for Kubernetes"
    importer = executor.get("importer", {})
    if importer.get("downloadToWorkspace"):
        yield "an importer into a workspace, which only Kubernetes has"
    uri = importer.get("artifactUri", {}).get("constant", "")
    if str(uri).startswith("oci://"):
        yield f"the importer's {uri}: oci:// is for Kubernetes"


def _of_dag(tasks: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[str]:
    graph = {name: upstream_of(task) for name, task in tasks.items()}
    for name, before in graph.items():
        for other in sorted(before - graph.keys()):
            yield f"task {name} waits for {other}, which is not in its DAG"
        for group, source in (("parameters", "componentInputParameter"), ("artifacts", "componentInputArtifact")):
            for given in tasks[name].get("inputs", {}).get(group, {}).values():
                if source in given and given[source] not in declared.get(group, {}):
                    yield f"task {name} is given {given[source]}, which the DAG does not declare as an input"
                selector = given.get("parameterExpressionSelector")
                if selector and SELECTOR.fullmatch(selector) is None:
                    yield f"task {name}: the selector {selector}"
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"its tasks wait for each other: {' -> '.join(error.args[1])}"
