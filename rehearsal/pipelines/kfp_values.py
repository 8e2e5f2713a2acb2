"""Inputs and outputs of tasks as kfp.local has them, and as reports have them (private names: see patches.py)."""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2
from kfp import dsl
from kfp.local import executor_output_utils

from contracts.canonical import canonical
from rehearsal.machines.mount import Mount
from rehearsal.pipelines.artifact_metadata import find_excess


def find_missing(spec: Any, io_store: Any) -> list[tuple[str, str, str, str]]:
    """Return the inputs whose producer has left no such output: group, name, producer and its output."""
    missing = []
    for group, kind, key in (
        ("parameters", "task_output_parameter", "output_parameter_key"),
        ("artifacts", "task_output_artifact", "output_artifact_key"),
    ):
        for name, given in getattr(spec.inputs, group).items():
            if given.HasField(kind):
                producer, output = getattr(given, kind).producer_task, getattr(getattr(given, kind), key)
                try:
                    io_store.get_task_output(producer, output)
                except ValueError:
                    missing.append((group, name, producer, output))
    return missing


def read_outputs(mount: Mount, message: Any, component_spec: Any) -> dict[str, Any]:
    """Return a task's outputs by name: parameters from their files, artifacts as declared or as the task says."""
    outputs = message.outputs
    outputs.output_file = mount.path_of(outputs.output_file)
    for parameter in outputs.parameters.values():
        parameter.output_file = mount.path_of(parameter.output_file)
    written = executor_output_utils.load_executor_output(outputs.output_file)
    for name, declared in outputs.artifacts.items():
        if name not in written.artifacts:
            # A container that says nothing of an artifact has it where it was told to write it.
            written.artifacts[name].CopyFrom(declared)
        for artifact in written.artifacts[name].artifacts:
            artifact.uri = mount.uri_of(artifact.uri)
    found: dict[str, Any] = executor_output_utils.get_outputs_from_executor_output(
        executor_output=written, executor_input=message, component_spec=component_spec
    )
    return found


def find_oversized(values: dict[str, Any]) -> str:
    """Return which of a task's artifacts has more metadata than Vertex holds, in words; empty: none has."""
    for name, artifacts in split_values(values)[1].items():
        for artifact in artifacts:
            message = struct_pb2.Struct()
            message.update(artifact["metadata"])
            if said := find_excess(message):
                return f"metadata of artifact {name}: {said}"
    return ""


def split_values(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Return parameters as JSON values, and artifacts as reports have them."""
    parameters: dict[str, Any] = {}
    artifacts: dict[str, list[dict[str, Any]]] = {}
    for name, value in values.items():
        entries = value if isinstance(value, list) else [value]
        if entries and all(isinstance(entry, dsl.Artifact) for entry in entries):
            artifacts[name] = [
                {
                    "name": e.name,
                    "uri": e.uri,
                    "metadata": canonical(e.metadata),
                    "schema_title": e.schema_title,
                    "schema_version": e.schema_version,
                }
                for e in entries
            ]
        else:
            parameters[name] = canonical(value)
    return parameters, artifacts
