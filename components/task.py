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
from contracts.errors import ConfigError, DataError
from inspection.documents import first_line
from inspection.pages.quantities import shorten

# Of an artifact's metadata as JSON, where another task takes it: the launcher's payload, one argument of 128 KiB, holds
# those of all inputs, and the configuration, once per worker pool. 40 kB ran with two pools, 70 kB did not.
MAX_INPUT_BYTES = 8_000
# Of all others. Vertex AI's limit is 200 kB
# (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts); the rest is
# for what services add, and for another way of writing numbers.
MAX_METADATA_BYTES = 150_000
MAX_NAME, MAX_TEXT = 120, 1500
LEFT_OUT = "left_out"
# Why something cannot be shown, which may quote what was read.
_MAX_SAID = 500
_Found = TypeVar("_Found")


class Unreadable(str):
    """Why something cannot be shown, for readers."""

    __slots__ = ()


def attempt(what: str, make: Callable[[], _Found]) -> _Found | Unreadable:
    """Return what is shown beside a task's result, or why it cannot be.

    A run's files may be of another version, damaged or hostile; nothing that is only shown may fail a task that has
    ended well.
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - what is shown beside the task's result must never fail it
        said = Unreadable(f"{what} cannot be shown: {shorten(first_line(error), _MAX_SAID)}")
        sys.stderr.write(f"warning: {said}\n")
        return said


class Task:
    """What a task is given, and what it leaves.

    Args:
        executor_input: The message as JSON values.
    """

    def __init__(self, executor_input: Mapping[str, Any]) -> None:
        inputs, self._outputs = executor_input.get("inputs", {}), executor_input["outputs"]
        self._parameters, self._inputs = inputs.get("parameterValues", {}), inputs.get("artifacts", {})
        self.artifacts: dict[str, dict[str, Any]] = {}
        """URI and metadata of output artifacts, by name."""
        self.run_id: str = self.parameter("run") or self._outputs["outputFile"].rsplit("/", 3)[1]
        """Vertex AI lays outputs out by it: ROOT/PROJECT_NUMBER/RUN/TASK/executor_output.json. As a parameter, which
        Kubeflow's tasks have, it would keep all tasks out of KFP's cache."""

    @classmethod
    def parse(cls, text: str) -> Task:
        """Read the executor input.

        Raises:
            ConfigError: The text is none.
        """
        try:
            return cls(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"--executor-input is no ExecutorInput ({type(error).__name__}: {error})",
                allowed="what KFP passes for {{$}}",
                todo="run this command as a task of a pipeline",
            ) from None

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
        """Set an output artifact: its metadata, and either a folder that it stands for or a content.

        Args:
            name: Of the output.
            metadata: JSON values by name; what has no room is left out, and counted.
            uri: The folder: later tasks take it, so that MAX_INPUT_BYTES is the limit of the metadata.
            content: Written to the artifact's own URI.
            suffix: Of that URI: a bucket's object has its content type by its name, and `.html` opens in a browser.
        """
        own = self._outputs["artifacts"][name]["artifacts"][0]["uri"] + suffix
        if content is not None:
            storage.replace(own, content.encode())
        kept, left_out = bound_metadata(metadata, MAX_INPUT_BYTES if uri else MAX_METADATA_BYTES)
        self.artifacts[name] = {"uri": uri or own, "metadata": {**kept, **({LEFT_OUT: left_out} if left_out else {})}}

    def set_parameter(self, name: str, value: str) -> None:
        """Write an output parameter."""
        _write(self._outputs["parameters"][name]["outputFile"], value)

    def finish(self) -> None:
        """Write the executor output."""
        artifacts = {name: {"artifacts": [artifact]} for name, artifact in self.artifacts.items()}
        _write(self._outputs["outputFile"], json.dumps({"artifacts": artifacts}))


def require_finished(what: str, uri: str) -> None:
    """Refuse an artifact whose folder was deleted.

    Raises:
        DataError: It was; KFP's cache still names it.
    """
    if not storage.exists(storage.join(uri, MANIFEST_NAME)):
        raise DataError(
            f"{what}: {uri} has no {MANIFEST_NAME}; it was deleted after KFP's cache had kept it",
            allowed="the folder of a finished stage",
            todo="run `shardline submit CONFIG --no-cache`, which makes it again (on Kubeflow: a new run)",
        )


def is_first_machine(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the job's first machine, which writes the outputs (Vertex AI's CLUSTER_SPEC; a lone one is)."""
    task = json.loads(environment.get("CLUSTER_SPEC") or "{}").get("task", {})
    return task.get("type", "workerpool0") == "workerpool0" and not task.get("index", 0)


def bound_metadata(fields: Mapping[str, Any], most: int = MAX_METADATA_BYTES) -> tuple[dict[str, Any], int]:
    """Return as much of an artifact's metadata as `most` bytes hold, and how many fields are left out.

    Long text is cut. Structures, such as a confusion matrix, are kept before text and numbers, and these in their
    order; fields whose name is too long are left out.
    """
    kept: dict[str, Any] = {}
    left = most
    for name in sorted(fields, key=lambda name: not isinstance(fields[name], list | dict)):
        value = fields[name]
        value = shorten(value, MAX_TEXT) if isinstance(value, str) else value
        if len(name) > MAX_NAME or (size := len(json.dumps({name: value}))) > left:
            continue
        left -= size
        kept[name] = value
    return {name: kept[name] for name in fields if name in kept}, len(fields) - len(kept)


def _write(path: str, text: str) -> None:
    if "://" in path:
        storage.replace(path, text.encode())
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
