"""Executor input and outputs of a task of the pipeline: kfp's messages ExecutorInput and ExecutorOutput.

https://github.com/kubeflow/pipelines/blob/master/api/v2alpha1/pipeline_spec.proto
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import DataError
from inspection.documents import first_line
from inspection.pages.quantities import shorten

# Metadata of an artifact that is an input of a later task, as JSON: the launcher's payload, one argument of 128 KiB,
# contains that of all inputs and the configuration, once per worker pool. 40 kB worked with two pools, 70 kB did not.
MAX_INPUT_BYTES = 8_000
# Metadata of other artifacts. Vertex AI's limit is 200 kB
# (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts); the rest is
# a reserve for fields that services add and for other number formats.
MAX_METADATA_BYTES = 150_000
MAX_NAME, MAX_TEXT = 120, 1500
LEFT_OUT = "left_out"
# The reason may quote file content.
_MAX_REASON_CHARS = 500
_Result = TypeVar("_Result")
# Of a stage's component: option of its command by input artifact, and the output artifact that is its folder.
INPUTS = {
    "shard": {},
    "profile": {"shards": "shards"},
    "train": {"shards": "shards", "report": "profile"},
    "export": {"shards": "shards", "model": "checkpoint"},
}
OUTPUTS = {"shard": "shards", "profile": "report", "train": "model", "export": "served"}


class Unreadable(str):
    """Reason why a part of a page cannot be shown."""

    __slots__ = ()


def attempt(subject: str, make: Callable[[], _Result]) -> _Result | Unreadable:
    """Return the result of `make`, or the reason for its error, which is logged.

    The files of a run may be of another version, damaged or hostile; an error on a page must not fail a task.
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - an error on a page must not fail the task
        failure = Unreadable(f"{subject} cannot be shown: {shorten(first_line(error), _MAX_REASON_CHARS)}")
        sys.stderr.write(f"warning: {failure}\n")
        return failure


class Task:
    """Inputs and outputs of a task.

    Args:
        executor_input: What KFP passes for {{$}}, as JSON.
    """

    def __init__(self, executor_input: str) -> None:
        message = json.loads(executor_input)
        inputs, self._outputs = message.get("inputs", {}), message["outputs"]
        self._parameters, self._inputs = inputs.get("parameterValues", {}), inputs.get("artifacts", {})
        self.artifacts: dict[str, dict[str, Any]] = {}
        """URI and metadata of output artifacts, by name."""
        self.run_id: str = self.parameter("run") or self._outputs["outputFile"].rsplit("/", 3)[1]
        """Taken from Vertex AI's path of outputs, ROOT/PROJECT_NUMBER/RUN/TASK/executor_output.json; as a parameter
        (Kubeflow) it would disable KFP's cache for all tasks."""

    def parameter(self, name: str) -> str:
        """Return an input parameter; empty: it was not given."""
        return str(self._parameters.get(name) or "")

    def input_uri(self, name: str) -> str | None:
        """Return the URI of an input, the folder of a finished stage; None: the component has no such input.

        It is an artifact, or on Kubeflow (pipelines/kubeflow.py) a text.

        Raises:
            DataError: The folder was deleted; KFP's cache still names it.
        """
        artifacts = self._inputs.get(name, {}).get("artifacts", [])
        uri = str(artifacts[0]["uri"]) if artifacts else self.parameter(name)
        if not uri:
            return None
        require_finished(f"input {name}", uri)
        return uri

    def has_output(self, name: str) -> bool:
        """Whether the component has an output artifact of this name."""
        return name in self._outputs.get("artifacts", {})

    def set_artifact(
        self, name: str, metadata: Mapping[str, Any], *, uri: str = "", content: str | None = None, suffix: str = ""
    ) -> None:
        """Set an output artifact: its metadata, and either the URI of a folder or a content.

        Args:
            name: Name of the output.
            metadata: JSON values by name; values beyond the size limit are omitted and counted.
            uri: The folder, an input of later tasks: metadata are limited to MAX_INPUT_BYTES.
            content: Written to the artifact's URI.
            suffix: Suffix of that URI, which determines the content type: `.html` opens in a browser.
        """
        target = self._outputs["artifacts"][name]["artifacts"][0]["uri"] + suffix
        if content is not None:
            storage.replace(target, content.encode())
        data, omitted = bound_metadata(metadata, MAX_INPUT_BYTES if uri else MAX_METADATA_BYTES)
        self.artifacts[name] = {"uri": uri or target, "metadata": {**data, **({LEFT_OUT: omitted} if omitted else {})}}

    def set_parameter(self, name: str, value: str) -> None:
        """Write an output parameter."""
        _write(self._outputs["parameters"][name]["outputFile"], value)

    def finish(self) -> None:
        """Write the executor output."""
        artifacts = {name: {"artifacts": [artifact]} for name, artifact in self.artifacts.items()}
        _write(self._outputs["outputFile"], json.dumps({"artifacts": artifacts}))


def require_finished(name: str, uri: str) -> None:
    """Raise DataError if the folder of an artifact was deleted, which KFP's cache does not notice."""
    if not storage.exists(storage.join(uri, MANIFEST_NAME)):
        raise DataError(
            f"{name}: {uri} has no {MANIFEST_NAME}; it was deleted after KFP's cache had kept it",
            allowed="the folder of a finished stage",
            todo="run `shardline submit CONFIG --no-cache`, which makes it again (on Kubeflow: a new run)",
        )


def is_first_machine(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the job's first or only machine, which writes the outputs (by Vertex AI's CLUSTER_SPEC)."""
    task = json.loads(environment.get("CLUSTER_SPEC") or "{}").get("task", {})
    return task.get("type", "workerpool0") == "workerpool0" and not task.get("index", 0)


def bound_metadata(fields: Mapping[str, Any], most: int = MAX_METADATA_BYTES) -> tuple[dict[str, Any], int]:
    """Limit an artifact's metadata to `most` bytes; return them and the number of omitted fields.

    Long text is truncated. Structures, such as a confusion matrix, have priority over text and numbers; fields with too
    long a name are omitted.
    """
    kept: dict[str, Any] = {}
    remaining = most
    for name in sorted(fields, key=lambda name: not isinstance(fields[name], list | dict)):
        value = fields[name]
        value = shorten(value, MAX_TEXT) if isinstance(value, str) else value
        if len(name) > MAX_NAME or (size := len(json.dumps({name: value}))) > remaining:
            continue
        remaining -= size
        kept[name] = value
    return {name: kept[name] for name in fields if name in kept}, len(fields) - len(kept)


def _write(path: str, text: str) -> None:
    if "://" in path:
        storage.replace(path, text.encode())
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
