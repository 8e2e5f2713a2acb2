"""Execution caching: the outputs of a task that ran before with the same interface, in place of running it.

https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching: the interface is the task's inputs (values of
parameters, ids of artifacts), the definition of its outputs, and its container's image, command, arguments and
environment; only pipelines of the same name share it; entries have no time to live. A task takes part where its
caching options say so: an enable_caching of the job is written into each of them by the client.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.canonical import canonical_hash
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.values import Data

if TYPE_CHECKING:
    from rehearsal.pipelines.task import Call

_CONTAINER_FIELDS = ("image", "command", "args", "env")


class Cache:
    """The cache of a location, as one pipeline sees it: a file for each task that succeeded.

    Args:
        job: The run; where it names no folder, nothing is kept.
        spec: PipelineSpec.
    """

    def __init__(self, job: Job, spec: Mapping[str, Any]) -> None:
        self._folder = Path(job.cache_folder) if job.cache_folder else None
        self._place = [job.project_number, job.location, spec.get("pipelineInfo", {}).get("name", "")]

    def key(self, call: Call, executor: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        """Return the key of a task's interface; empty where it takes no part.

        Args:
            call: The task.
            executor: Its ExecutorSpec.
            inputs: Of its executor input, parameters with their placeholders replaced; nothing of one run is in them.
        """
        if self._folder is None or not call.task.get("cachingOptions", {}).get("enableCache"):
            return ""
        artifacts = {
            name: [[artifact["name"], artifact["uri"], artifact["metadata"]] for artifact in entry["artifacts"]]
            for name, entry in inputs["artifacts"].items()
        }
        container = {field: executor["container"].get(field) for field in _CONTAINER_FIELDS}
        outputs = call.component.get("outputDefinitions", {})
        return canonical_hash([self._place, inputs["parameterValues"], artifacts, outputs, container])

    def find(self, key: str) -> Data | None:
        """Return the outputs of an earlier execution."""
        if not key or self._folder is None:
            return None
        try:
            return Data(**json.loads((self._folder / key).read_text()))
        except FileNotFoundError:
            return None

    def keep(self, key: str, outputs: Data) -> None:
        """Keep the outputs of an execution that succeeded; several runs may at once."""
        if key and self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = self._folder / f".{uuid.uuid4().hex}"
            new.write_text(json.dumps(asdict(outputs)))
            os.replace(new, self._folder / key)  # noqa: PTH105
