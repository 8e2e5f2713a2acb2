"""A local Vertex whose runs are small and real: they change the store from threads of their own."""

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

with warnings.catch_warnings():
    # The client library warns of Python's age, and of packages beside it, when it is imported.
    warnings.simplefilter("ignore")
    from google.cloud import aiplatform_v1 as gapic

from rehearsal.clock import Clock
from rehearsal.gcs import BucketService
from rehearsal.servers.access import Access
from rehearsal.servers.vertex import VertexServer
from rehearsal.vertex.state import CloudState
from rehearsal.vertex.store import Store

PROJECT, NUMBER = "shardline-test", "123456789012"
PARENT = f"projects/{PROJECT}/locations/us-central1"
IMAGE = "us-docker.pkg.dev/p/r/i@sha256:" + "0" * 64
JOB: dict[str, Any] = {
    "display_name": "a job",
    "job_spec": {
        "worker_pool_specs": [
            {
                "replica_count": 1,
                "machine_spec": {"machine_type": "n1-standard-4"},
                "container_spec": {"image_uri": IMAGE},
            }
        ]
    },
}
# One task that takes a parameter, as kfp compiles it.
SPEC: dict[str, Any] = {
    "pipelineInfo": {"name": "line"},
    "schemaVersion": "2.1.0",
    "sdkVersion": "kfp-2.17.0",
    "root": {
        "inputDefinitions": {
            "parameters": {
                "region": {"parameterType": "STRING"},
                "nodes": {"parameterType": "NUMBER_INTEGER", "isOptional": True, "defaultValue": 1},
            }
        },
        "dag": {
            "tasks": {
                "say": {
                    "taskInfo": {"name": "say"},
                    "componentRef": {"name": "comp-say"},
                    "inputs": {"parameters": {"region": {"componentInputParameter": "region"}}},
                }
            }
        },
    },
    "components": {
        "comp-say": {
            "executorLabel": "exec-say",
            "inputDefinitions": {"parameters": {"region": {"parameterType": "STRING"}}},
        }
    },
    "deploymentSpec": {"executors": {"exec-say": {"container": {"image": IMAGE, "command": ["true"]}}}},
}


def pipeline_job(**changes: Any) -> dict[str, Any]:
    """Return a pipeline job as a client sends it."""
    job = {
        "display_name": "line",
        "pipeline_spec": SPEC,
        "runtime_config": {"gcs_output_directory": "gs://bucket/root", "parameter_values": {"region": "us-central1"}},
    }
    return job | changes


def rest(cloud: "Cloud", kind: Any) -> Any:
    """Return a client of a service over REST."""
    options = {"api_endpoint": cloud.server.endpoint}
    return kind(transport="rest", credentials=Credentials(cloud.server.access.token), client_options=options)


class InstantRuns:
    """Runs that end as told once they are let go: they stay running until `go` is set."""

    def __init__(self, store: Store, running: Any, succeeded: Any, cancelled: Any) -> None:
        self.go = threading.Event()
        self.started: list[str] = []
        self._store, self._states = store, (running, succeeded, cancelled)

    def start(self, name: str) -> None:
        self.started.append(name)
        threading.Thread(target=self._run, args=(name,), daemon=True).start()

    def cancel(self, name: str) -> None:
        self._set(name, self._states[2])

    def _run(self, name: str) -> None:
        self._set(name, self._states[0])
        self.go.wait(60)
        self._set(name, self._states[1])

    def _set(self, name: str, state: Any) -> None:
        def change(message: Any) -> None:
            if message.state not in self._states[1:]:
                message.state = state

        try:
            self._store.update(name, change)
        except KeyError:
            return


class Cloud:
    """A server and what it is made of."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        job, pipeline = gapic.JobState, gapic.PipelineState
        self.store = Store()
        self.clock = clock or Clock()
        self.pipelines = InstantRuns(
            self.store,
            pipeline.PIPELINE_STATE_RUNNING,
            pipeline.PIPELINE_STATE_SUCCEEDED,
            pipeline.PIPELINE_STATE_CANCELLED,
        )
        self.jobs = InstantRuns(self.store, job.JOB_STATE_RUNNING, job.JOB_STATE_SUCCEEDED, job.JOB_STATE_CANCELLED)
        buckets = BucketService(folder / "buckets", buckets=["bucket"])
        state = CloudState(self.store, self.pipelines, self.jobs, self.clock, {PROJECT: NUMBER}, buckets)
        self.server = VertexServer(state, folder / "vertex", Access(folder / "vertex", project=PROJECT))

    def child(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in a child process that has nothing but the server's variables."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(Path(self.server.environment["SSL_CERT_FILE"]).parent)}
        command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
        return subprocess.run(
            command, env=environment | self.server.environment, text=True, capture_output=True, timeout=240
        )


@pytest.fixture
def make_cloud(tmp_path: Path) -> Iterator[Callable[..., Cloud]]:
    """Start local clouds; they end with the test."""
    made: list[Cloud] = []

    def make(**options: Any) -> Cloud:
        cloud = Cloud(tmp_path / f"cloud{len(made)}", **options)
        cloud.server.start()
        made.append(cloud)
        return cloud

    yield make
    for cloud in made:
        cloud.jobs.go.set()
        cloud.pipelines.go.set()
        cloud.server.stop()


@pytest.fixture
def cloud(make_cloud: Callable[..., Cloud]) -> Cloud:
    """A local cloud."""
    return make_cloud()
