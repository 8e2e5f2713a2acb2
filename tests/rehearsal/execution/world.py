"""Compiled pipelines, executed without a server between, on this machine's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1
from google.protobuf import json_format, struct_pb2

from rehearsal.gcs import BucketServer
from rehearsal.pipelines.pipeline_runs import PipelineRuns
from rehearsal.resources.store import Store

PARENT = "projects/acme-vision/locations/europe-west4"
NUMBERS = {"acme-vision": "123456789012"}
# For a machine that is slow and busy; nothing waits so long unless it hangs. Well below the limit of one test, so that
# it is the wait that fails, with what is known then.
LIMIT_S = 120.0


class Clock:
    """This machine's."""

    def now(self) -> float:
        return time.time()


class Logs:
    """Keeps entries in memory."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def write(self, resource_type: str, labels: Any, text: str, severity: str, time: float) -> None:
        with self._lock:
            self.entries.append({"type": resource_type, "labels": dict(labels), "text": text, "severity": severity})

    def texts(self, **labels: str) -> list[str]:
        """Lines whose entry has these labels."""
        return [e["text"] for e in self.entries if all(e["labels"].get(k) == v for k, v in labels.items())]


class Pipelines:
    """Submits compiled pipelines to PipelineRuns without a server between."""

    def __init__(self, folder: Path, bucket: BucketServer, **options: Any) -> None:
        self.store, self.logs, self.folder = Store(), Logs(), folder
        self.runs = PipelineRuns(
            self.store,
            folder=folder,
            environment={**bucket.environment, **options.pop("environment", {})},
            logs=self.logs,
            clock=Clock(),
            project_numbers=NUMBERS,
            **options,
        )

    def submit(self, pipeline: Callable[..., Any] | Any, run: str = "run-1", **parameters: Any) -> str:
        """Compile, add and start; return the name."""
        spec = json_format.MessageToDict(pipeline.pipeline_spec)
        values = {name: json_format.ParseDict(value, struct_pb2.Value()) for name, value in parameters.items()}
        job = aiplatform_v1.PipelineJob(
            name=f"{PARENT}/pipelineJobs/{run}",
            pipeline_spec=spec,
            runtime_config=aiplatform_v1.PipelineJob.RuntimeConfig(
                gcs_output_directory=f"gs://line/{self.folder.name}"
            ),
        )
        for name, value in values.items():
            aiplatform_v1.PipelineJob.pb(job).runtime_config.parameter_values[name].CopyFrom(value)
        self.store.add(job.name, job)
        self.runs.start(job.name)
        return job.name

    def run(self, pipeline: Any, **parameters: Any) -> Any:
        """Submit, wait for the end, and return the job."""
        name = self.submit(pipeline, **parameters)
        job = self.runs.wait(name, LIMIT_S)
        assert job.end_time, f"{name} did not end"
        return job

    def orchestrator_log(self, run: str = "run-1") -> str:
        path = self.folder / run / "orchestrator.log"
        return path.read_text() if path.exists() else "\n".join(self.logs.texts())


def states(job: Any) -> dict[str, str]:
    """The state of each task by its unique name; the root's is the empty one."""
    return {detail.task_unique_name: detail.state.name for detail in job.job_detail.task_details}


def detail(job: Any, name: str) -> Any:
    (found,) = [one for one in job.job_detail.task_details if one.task_unique_name == name]
    return found
