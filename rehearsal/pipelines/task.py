"""One task of a pipeline: its executor's input, its container, its outputs, its place in the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import struct_pb2

from contracts.canonical import canonical
from rehearsal.pipelines.artifact_metadata import find_excess, find_fault
from rehearsal.pipelines.cache import Cache
from rehearsal.pipelines.containers import Containers, ContainerTask
from rehearsal.pipelines.placeholders import Values, substitute_all
from rehearsal.pipelines.reports import Path as TaskPath
from rehearsal.pipelines.reports import task_id
from rehearsal.pipelines.values import Data, TaskFailed, declared_inputs, fit

_OUTPUT_NAME = "executor_output.json"
_ARTIFACT_TYPE = {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"}


@dataclass(frozen=True)
class Call:
    """A task with its inputs."""

    path: TaskPath
    task: Mapping[str, Any]
    """PipelineTaskSpec."""
    component: Mapping[str, Any]
    """ComponentSpec."""
    inputs: Data
    live: frozenset[str]
    """Parameters that the specification gives: placeholders in them are meant."""


class TaskRunner:
    """Runs single tasks of one pipeline; several threads may.

    Args:
        containers: Run the containers.
        spec: PipelineSpec.
    """

    def __init__(self, containers: Containers, spec: Mapping[str, Any]) -> None:
        self._containers, self._job = containers, containers.job
        self._executors = spec.get("deploymentSpec", {}).get("executors", {})
        self._cache = Cache(self._job, spec)

    def run(self, call: Call) -> tuple[str, Data]:
        """Run a task; return its state, SUCCEEDED or SKIPPED for what the cache had, and its outputs.

        Raises:
            TaskFailed: It ended with an error, or cannot be run.
        """
        executor = self._executors[call.component["executorLabel"]]
        outputs = self._outputs(call)
        artifacts = {name: {"artifacts": [artifact]} for name, artifact in call.inputs.artifacts.items()}
        given = {"parameterValues": call.inputs.parameters, "artifacts": artifacts}
        inputs = self._replace(call, self._containers.output_files({"inputs": given, "outputs": outputs}))
        executor_input = {"inputs": {**given, "parameterValues": inputs.parameters}, "outputs": outputs}
        # A job's worker pools hold the executor input: with the paths of this run no key would be found again.
        keyed = self._replace(call, {"inputs": given, "outputs": self._outputs(call, blank=True)})
        key = self._cache.key(call, executor, {**given, "parameterValues": keyed.parameters})
        if found := self._cache.find(key):
            return "SKIPPED", found
        container = executor["container"]
        task = ContainerTask(
            path=call.path,
            words=[*container.get("command", []), *container.get("args", [])],
            env={variable["name"]: variable.get("value", "") for variable in container.get("env", [])},
            executor_input=executor_input,
            optional=_optional(call.component),
        )
        self._containers.run(task)
        found = self._read(call, executor_input)
        self._cache.keep(key, found)
        return "SUCCEEDED", found

    def _replace(self, call: Call, executor_input: dict[str, Any]) -> Data:
        """Return a task's inputs with placeholders replaced, in the types that its component declares."""
        values = Values(executor_input, self._job.constants(), _optional(call.component))
        definitions = declared_inputs(call.component)
        found = Data(artifacts=call.inputs.artifacts)
        for name, value in call.inputs.parameters.items():
            replaced = substitute_all(value, values) if name in call.live else value
            if replaced is not None:
                found.parameters[name] = fit(name, replaced, definitions.get(name, {}).get("parameterType", ""))
        _check_complete(call.component, found)
        return found

    def _outputs(self, call: Call, *, blank: bool = False) -> dict[str, Any]:
        """Return the `outputs` of an executor's input, files as gs:// URIs; blank: of no run."""
        root = "gs://blank" if blank else self._containers.task_root(call.path)
        declared = call.component.get("outputDefinitions", {})

        def empty(name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
            artifact = self._artifact(call.path, name, f"{root}/{name}", definition)
            return {"artifacts": [{**artifact, "name": name} if blank else artifact]}

        return {
            "parameters": {name: {"outputFile": f"{root}/{name}"} for name in declared.get("parameters", {})},
            "artifacts": {name: empty(name, made) for name, made in declared.get("artifacts", {}).items()},
            "outputFile": f"{root}/{_OUTPUT_NAME}",
        }

    def _artifact(self, path: TaskPath, name: str, uri: str, definition: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new artifact; its name is that of its resource, as kfp's executor says of Vertex."""
        store = f"projects/{self._job.project_number}/locations/{self._job.location}/metadataStores/default"
        number = task_id(self._job.uuid, path)
        kind = {**_ARTIFACT_TYPE, **definition.get("artifactType", {})}
        return {"name": f"{store}/artifacts/{number}-{name}", "type": kind, "uri": uri, "metadata": {}}

    def _read(self, call: Call, executor_input: Mapping[str, Any]) -> Data:
        """Return what a container has written: parameters in files of their own, artifacts in its output file."""
        mount, outputs = self._containers.mount, executor_input["outputs"]
        declared = call.component.get("outputDefinitions", {})
        written = _read_json(Path(mount.path_of(outputs["outputFile"])))
        found = Data()
        for name in declared.get("parameters", {}):
            file = Path(mount.path_of(outputs["parameters"][name]["outputFile"]))
            if file.is_file():
                found.parameters[name] = file.read_text()
        for name in declared.get("artifacts", {}):
            (empty,) = outputs["artifacts"][name]["artifacts"]
            (artifact,) = written.get("artifacts", {}).get(name, {}).get("artifacts", [])[:1] or [{}]
            if artifact.get("name") not in (None, "", empty["name"]):
                # It would be the resource's name, of the next run too.
                raise TaskFailed(
                    f"artifact {name} was given the name {artifact['name']!r} by its task: leave `name` out, or "
                    f"as it was given ({empty['name']})"
                )
            metadata = canonical(artifact.get("metadata", {}))
            check_metadata(name, empty["type"].get("schemaTitle", ""), metadata)
            found.artifacts[name] = {**empty, "uri": artifact.get("uri") or empty["uri"], "metadata": metadata}
        return found


def check_metadata(name: str, kind: str, metadata: dict[str, Any]) -> None:
    """Check that metadata of an artifact are of a size and form that Vertex AI keeps and renders, or raise TaskFailed.

    Args:
        name: The output, for messages.
        kind: Schema title of the artifact's type.
        metadata: By name, as JSON values.
    """
    fault = find_fault(kind, metadata)
    if not fault:
        message = struct_pb2.Struct()
        message.update(metadata)
        fault = find_excess(message)
    if fault:
        raise TaskFailed(f"metadata of artifact {name}: {fault}")


def _optional(component: Mapping[str, Any]) -> frozenset[str]:
    """Return the input parameters that a component declares optional."""
    return frozenset(name for name, definition in declared_inputs(component).items() if definition.get("isOptional"))


def _check_complete(component: Mapping[str, Any], inputs: Data) -> None:
    for group, given in (("parameters", inputs.parameters), ("artifacts", inputs.artifacts)):
        for name, definition in component.get("inputDefinitions", {}).get(group, {}).items():
            if not definition.get("isOptional") and name not in given:
                raise TaskFailed(f"input {name} has no value, and its component declares no default")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise TaskFailed(f"{_OUTPUT_NAME}, which the task's container wrote, is no JSON: {error}") from None
    return found if isinstance(found, dict) else {}
