"""Execution of single tasks: executor input, execution cache, outputs.

Cache: https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching. The key covers the inputs (values of
parameters, artifacts), the definition of the outputs, and the container's image, command, arguments and environment.
Pipelines share entries only with the same name; entries do not expire.

Artifacts: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.canonical import canonical, canonical_hash
from rehearsal.pipelines.containers import Containers, find_path
from rehearsal.pipelines.job import Job, TaskPath
from rehearsal.pipelines.placeholders import Values, substitute, substitute_all
from rehearsal.pipelines.values import Data, TaskFailed, fit, input_definitions, optional_inputs, require_inputs

METADATA_LIMIT = 200_000
"""Characters of an artifact's metadata as JSON."""
_OUTPUT_NAME = "executor_output.json"
_ARTIFACT_TYPE = {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"}
_CONTAINER_FIELDS = ("image", "command", "args", "env")


@dataclass(frozen=True)
class Call:
    """A task with its inputs."""

    path: TaskPath
    task: Mapping[str, Any]
    """PipelineTaskSpec."""
    component: Mapping[str, Any]
    """ComponentSpec."""
    inputs: Data
    specified: frozenset[str]
    """Parameters whose placeholders are replaced (values.resolve_inputs)."""


class Tasks:
    """Runs the tasks of one pipeline; thread-safe.

    `cache` maps keys to the outputs of successful tasks; all pipelines share it.
    """

    def __init__(self, job: Job, containers: Containers, cache: dict[str, Data]) -> None:
        self._job, self._containers, self._cache = job, containers, cache

    def run(self, call: Call, on_running: Callable[[], None]) -> tuple[str, Data]:
        """Run a task; return its state (SUCCEEDED, or SKIPPED if cached) and its outputs.

        `on_running` is called before its container starts.

        Raises:
            TaskFailed: It ended with an error, or cannot run.
        """
        container = self._job.spec["deploymentSpec"]["executors"][call.component["executorLabel"]]["container"]
        artifacts = {name: {"artifacts": [artifact]} for name, artifact in call.inputs.artifacts.items()}
        outputs = self._outputs(call, self._job.task_root(call.path), is_blank=False)
        paths = self._containers.with_paths(outputs)
        inputs = {"parameterValues": self._parameters(call, artifacts, paths), "artifacts": artifacts}
        # Parameters may contain the executor input: with this run's paths, keys would never match.
        blank = self._outputs(call, "gs://blank", is_blank=True)
        key = self._key(call, container, self._parameters(call, artifacts, blank))
        if key and key in self._cache:
            return "SKIPPED", self._cache[key]
        on_running()
        executor_input = {"inputs": inputs, "outputs": paths}
        if (recipients := self._containers.mail_recipients(container, inputs["parameterValues"])) is not None:
            status = inputs["parameterValues"].get("pipeline_task_final_status", {})
            self._containers.log(call.path, f"mail to {', '.join(recipients)}: the run {status.get('state', '')}")
            return "SUCCEEDED", Data()
        values = Values(executor_input, self._job.constants, optional_inputs(call.component))
        command = [substitute(word, values) for word in [*container.get("command", []), *container.get("args", [])]]
        variables = container.get("env", [])
        env = {variable["name"]: substitute(variable.get("value", ""), values) for variable in variables}
        self._containers.run(call.path, command, env)
        data = self._read(call, outputs)
        if key:
            self._cache[key] = data
        return "SUCCEEDED", data

    def _parameters(self, call: Call, artifacts: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a task's parameters with placeholders replaced, converted to the component's types."""
        inputs = {"parameterValues": call.inputs.parameters, "artifacts": artifacts}
        values = Values({"inputs": inputs, "outputs": outputs}, self._job.constants, optional_inputs(call.component))
        definitions, parameters = input_definitions(call.component), {}
        for name, value in call.inputs.parameters.items():
            replaced = substitute_all(value, values) if name in call.specified else value
            if replaced is not None:
                parameters[name] = fit(name, replaced, definitions.get(name, {}).get("parameterType", ""))
        require_inputs(call.component, Data(parameters, call.inputs.artifacts))
        return parameters

    def _key(self, call: Call, container: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
        """Return the cache key of a task; empty if caching is disabled."""
        if not call.task.get("cachingOptions", {}).get("enableCache"):
            return ""
        artifacts = {
            name: [artifact["name"], artifact["uri"], artifact["metadata"]]
            for name, artifact in call.inputs.artifacts.items()
        }
        image = {field: container.get(field) for field in _CONTAINER_FIELDS}
        place = [self._job.project_number, self._job.location, self._job.spec["pipelineInfo"]["name"]]
        return canonical_hash([place, parameters, artifacts, call.component.get("outputDefinitions", {}), image])

    def _outputs(self, call: Call, root: str, *, is_blank: bool) -> dict[str, Any]:
        """Return the `outputs` of an executor input, with gs:// URIs below a root."""
        definitions = call.component.get("outputDefinitions", {})
        store = f"projects/{self._job.project_number}/locations/{self._job.location}/metadataStores/default"
        number = self._job.task_id(call.path)
        artifacts = {}
        for name, definition in definitions.get("artifacts", {}).items():
            artifact = {
                # The resource name, as kfp's executor expects on Vertex AI.
                "name": name if is_blank else f"{store}/artifacts/{number}-{name}",
                "type": {**_ARTIFACT_TYPE, **definition.get("artifactType", {})},
                "uri": f"{root}/{name}",
                "metadata": {},
            }
            artifacts[name] = {"artifacts": [artifact]}
        return {
            "parameters": {name: {"outputFile": f"{root}/{name}"} for name in definitions.get("parameters", {})},
            "artifacts": artifacts,
            "outputFile": f"{root}/{_OUTPUT_NAME}",
        }

    def _read(self, call: Call, outputs: Mapping[str, Any]) -> Data:
        """Read the outputs of a container: parameters from a file each, artifacts from the executor output."""
        folder, data = self._containers.gcs_folder, Data()
        executor_output = _read_json(find_path(folder, outputs["outputFile"]))
        for name, entry in outputs["parameters"].items():
            path = find_path(folder, entry["outputFile"])
            if path.is_file():
                data.parameters[name] = path.read_text()
        for name, entry in outputs["artifacts"].items():
            (declared,) = entry["artifacts"]
            (artifact,) = executor_output.get("artifacts", {}).get(name, {}).get("artifacts", [])[:1] or [{}]
            if artifact.get("name") not in (None, "", declared["name"]):
                # It would name the resource, also in the next run.
                raise TaskFailed(
                    f"artifact {name} was given the name {artifact['name']!r} by its task: leave `name` out, or "
                    f"as it was given ({declared['name']})"
                )
            metadata = canonical(artifact.get("metadata", {}))
            if len(json.dumps(metadata)) > METADATA_LIMIT:
                raise TaskFailed(f"the metadata of artifact {name} has more than {METADATA_LIMIT:,} characters")
            data.artifacts[name] = {**declared, "uri": artifact.get("uri") or declared["uri"], "metadata": metadata}
        return data


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise TaskFailed(f"{_OUTPUT_NAME}, which the task's container wrote, is no JSON: {error}") from None
    return values if isinstance(values, dict) else {}


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")
