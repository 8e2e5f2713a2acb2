"""What the process that executes a pipeline says while it works: JSON lines, one object each.

    {"report": "task", "path": [...], "id": 1, "state": "RUNNING", "dag": false, "error": null,
     "inputs": {...}, "outputs": {...}, "in": {...}, "out": {...}}
    {"report": "log", "path": [...], "id": 1, "text": "..."}
    {"report": "end", "path": [], "id": 1, "state": "SUCCEEDED", "error": null}

A path is the names of the DAGs a task is in, then its own; the root has none. States are those of PipelineTaskDetail;
inputs and outputs are parameters by name, in and out artifacts. Times are added by the reader, whose clock may be
another one than this machine's.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

Path = tuple[str, ...]

FINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "SKIPPED", "CANCELLED", "NOT_TRIGGERED"})


def task_id(job_uuid: str, path: Path) -> int:
    """Return a task's id, which is that of its container's custom job too: a number as Vertex gives them.

    https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.pipelineJobs#ContainerDetail
    (mainJob: "the name of the CustomJob for the main container execution").
    """
    digest = hashlib.sha256("/".join((job_uuid, *path)).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def error_of(code: int, message: str) -> dict[str, Any]:
    """Return an error as google.rpc.Status has it."""
    return {"code": code, "message": message}


class Reporter:
    """Writes reports; several threads may."""

    def __init__(self, stream: BinaryIO, job_uuid: str) -> None:
        self._stream, self._job_uuid = stream, job_uuid
        self._lock = threading.Lock()

    def task(
        self,
        path: Path,
        state: str,
        *,
        error: Mapping[str, Any] | None = None,
        is_dag: bool = False,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        artifacts_in: Mapping[str, Any] | None = None,
        artifacts_out: Mapping[str, Any] | None = None,
    ) -> None:
        """Say that a task is in a state."""
        more = {"inputs": inputs, "outputs": outputs, "in": artifacts_in, "out": artifacts_out}
        self._write(
            "task",
            path,
            state=state,
            error=error,
            dag=is_dag,
            **{name: value for name, value in more.items() if value is not None},
        )

    def log(self, path: Path, text: str) -> None:
        """Pass on a line that a task's container printed."""
        self._write("log", path, text=text)

    def end(self, state: str, error: Mapping[str, Any] | None = None) -> None:
        """Say how the run ended."""
        self._write("end", (), state=state, error=error)

    def _write(self, report: str, path: Path, **fields: Any) -> None:
        record = {"report": report, "path": path, "id": task_id(self._job_uuid, path), **fields}
        line = (json.dumps(record) + "\n").encode()
        with self._lock:
            self._stream.write(line)
            self._stream.flush()
