"""Tasks of the pipeline as kfp starts them: a component's executor input, and what the task leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from components.entry import main
from components.export import export
from components.list_source import list_source
from components.profile import profile
from components.record import record
from components.register import register
from components.shard import shard
from components.train import train
from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME
from contracts.config import RunConfig
from contracts.config.load import parse_config
from tests.inspection.documents import DOCUMENTS, trained_with_evaluation

LINE, RUN = "gs://bucket-1/lines/weekly", "20261122-060000-0001"
COMPONENTS: dict[str, Any] = {
    "list-source": list_source,
    "shard": shard,
    "profile": profile,
    "train": train,
    "export": export,
    "register": register,
    "record": record,
}


def make_config(**sections: Mapping[str, Any]) -> RunConfig:
    """Return a configuration of the line."""
    place = {"root": "gs://bucket-1/lines", "name": "weekly"}
    return parse_config({"run": place, "train": {"global_batch_size": 64}, **sections}, where="test")


def root_of(name: str) -> str:
    """Return the folder that Vertex AI gives a task."""
    return f"{LINE}/pipeline/123456789012/{RUN}/{name}_-1"


def executor_input(name: str, config: RunConfig, inputs: Mapping[str, str], **parameters: str) -> str:
    """Return what kfp gives a task of a component.

    Args:
        name: Of the component.
        config: Its parameter of that name.
        inputs: URIs of its input artifacts.
        **parameters: All others.
    """
    spec, root = COMPONENTS[name].component_spec, root_of(name)
    values = {"config": config.model_dump_json(exclude_defaults=True), **parameters}
    assert {*values, *inputs} == set(spec.inputs)
    parameters_out, artifacts_out = {}, {}
    for key, output in spec.outputs.items():
        if output.type == "String":
            parameters_out[key] = {"outputFile": f"{root}/{key}"}
        else:
            artifacts_out[key] = {"artifacts": [{"name": key, "uri": f"{root}/{key}", "metadata": {}}]}
    message = {
        # A CustomJob's has all parameters of the helper too.
        "inputs": {
            "parameterValues": {**values, "worker_pool_specs": [{"args": ["{{$.json_escape[1]}}"]}]},
            "artifacts": {key: {"artifacts": [{"name": "7", "uri": uri}]} for key, uri in inputs.items()},
        },
        "outputs": {
            "parameters": parameters_out,
            "artifacts": artifacts_out,
            "outputFile": f"{root}/executor_output.json",
        },
    }
    return json.dumps(message)


def perform(name: str, config: RunConfig, inputs: Mapping[str, str] | None = None, **parameters: str) -> int:
    """Run a task and return its exit code."""
    return main([name, "--executor-input", executor_input(name, config, inputs or {}, **parameters)])


def read_artifacts(name: str) -> dict[str, dict[str, Any]]:
    """Return the artifacts of a task as the service would tell of them, by the output's name."""
    written = json.loads(storage.read_bytes(f"{root_of(name)}/executor_output.json"))["artifacts"]
    outputs = COMPONENTS[name].component_spec.outputs
    found = {}
    for key, entry in written.items():
        title, _, version = outputs[key].type.partition("@")
        found[key] = {**entry["artifacts"][0], "schemaTitle": title, "schemaVersion": version}
    return found


def read_output(name: str, key: str) -> str:
    """Return the content of an output; of an artifact, where the task says that it is."""
    artifacts = COMPONENTS[name].component_spec.outputs[key].type != "String"
    uri = read_artifacts(name)[key]["uri"] if artifacts else f"{root_of(name)}/{key}"
    return storage.read_bytes(uri).decode()


def publish(stage: str, content: bytes | None = None) -> str:
    """Publish the manifest of a finished stage; return the folder's URI."""
    uri = f"{LINE}/{stage}/0123456789abcdef"
    storage.replace(f"{uri}/{MANIFEST_NAME}", DOCUMENTS[stage].to_json() if content is None else content)
    return uri


def publish_training(evaluation: bytes | None) -> str:
    """Publish a training that says it has an evaluation, and the evaluation if there is one."""
    uri = publish("train", trained_with_evaluation(evaluation or b"{}").to_json())
    if evaluation is not None:
        storage.replace(f"{uri}/{EVALUATION_NAME}", evaluation)
    return uri


def write_attempt(stage: str, attempt: str, events: list[dict[str, Any]]) -> None:
    """Write the events of an attempt."""
    content = "".join(json.dumps(event) + "\n" for event in events).encode()
    storage.replace(f"{LINE}/{stage}/attempts/{attempt}/events.jsonl", content)
