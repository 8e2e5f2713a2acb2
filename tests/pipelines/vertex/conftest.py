"""A local Vertex in this process, Google's SDK against it, and runs that play how things end."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    # The client library warns of Python's age, and of packages beside it, when it is imported.
    warnings.simplefilter("ignore")
    from google.cloud import aiplatform  # noqa: F401
    from google.cloud.aiplatform_v1 import types
    from google.cloud.dataflow_v1beta3 import types as dataflow_types

from contracts import storage
from contracts.canonical import canonical
from contracts.config import RunConfig
from contracts.config.load import parse_config
from pipelines.compile import CompiledLine
from pipelines.plan import Plan, find_cost
from pipelines.submit import Ready
from rehearsal.clock import Clock
from rehearsal.gcs import BucketServer
from rehearsal.gcs.objects import PROJECT_NUMBER
from rehearsal.servers.access import Access
from rehearsal.servers.vertex import VertexServer
from rehearsal.vertex.state import CloudState
from rehearsal.vertex.store import Store

# The bucket server's number: the SDK compares the two.
PROJECT, NUMBER, REGION = "shardline-test", str(PROJECT_NUMBER), "us-central1"
STOCKOUT = (
    "Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator."
)
QUOTA = (
    "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
)
_LABEL = "vertex-ai-pipelines-run-billing-id"
# proto-plus declares an enum's members as numbers.
_PIPELINE: Any = types.PipelineState
_JOB: Any = types.JobState
_TASK: Any = types.PipelineTaskDetail.State
_DONE = (_PIPELINE.PIPELINE_STATE_SUCCEEDED, _PIPELINE.PIPELINE_STATE_FAILED, _PIPELINE.PIPELINE_STATE_CANCELLED)
_JOB_DONE = (_JOB.JOB_STATE_SUCCEEDED, _JOB.JOB_STATE_FAILED, _JOB.JOB_STATE_CANCELLED)
_TASK_DONE = (_TASK.SUCCEEDED, _TASK.FAILED, _TASK.CANCELLED)


@dataclass
class Script:
    """How a run goes, by the region of its custom job."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """Region -> succeed | pending | running | an error message, with which the job fails; succeed where unset."""
    deaf: bool = False
    """Whether custom jobs do not end when their pipeline is cancelled."""
    dataflow: bool = False
    """Whether the run's sharding starts a Dataflow job, which goes on until it is cancelled."""


class PlayedPipelines:
    """Each run has a task `shard` that has ended, and a task `train` that starts one custom job."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.script = Script()
        self.started: list[str] = []
        self.deaf: set[str] = set()

    def start(self, name: str) -> None:
        self.started.append(name)
        threading.Thread(target=self._play, args=(name,), daemon=True).start()

    def cancel(self, name: str) -> None:
        def change(job: Any) -> None:
            if job.state not in _DONE:
                job.state = _PIPELINE.PIPELINE_STATE_CANCELLED
                for detail in job.job_detail.task_details:
                    if detail.state not in _TASK_DONE:
                        detail.state = _TASK.CANCELLED

        self.store.update(name, change)

    def _play(self, name: str) -> None:
        pipeline = self.store.get(name)
        parameters = dict(pipeline.runtime_config.parameter_values)
        region = parameters.get("region", REGION)
        outcome = self.script.outcomes.get(region, "succeed")
        job_name = f"projects/{NUMBER}/locations/{region}/customJobs/{self.store.new_id()}"
        self.store.update(name, _begin)
        if self.script.dataflow:
            flow, running = f"flow-{self.store.new_id()}", dataflow_types.JobState.JOB_STATE_RUNNING
            labels = {"shardline-line": pipeline.display_name, "shardline-run": name.rpartition("/")[2]}
            job = dataflow_types.Job(id=flow, name="shardline-0123", current_state=running, labels=labels)
            job.create_time = pipeline.create_time
            self.store.add(f"projects/{NUMBER}/locations/{region}/jobs/{flow}", job)
        self.store.add(job_name, _custom_job(job_name, pipeline))
        if self.script.deaf:
            self.deaf.add(job_name)
        if outcome == "pending":
            return
        self.store.update(job_name, lambda job: _set(job, _JOB.JOB_STATE_RUNNING))
        if outcome == "running":
            return
        if outcome != "succeed":
            self.fail(name, job_name, outcome)
            return
        self.store.update(job_name, lambda job: _set(job, _JOB.JOB_STATE_SUCCEEDED))
        self.store.update(name, lambda job: _end(job, failed=False))

    def fail(self, name: str, job_name: str, message: str) -> None:
        """End a run's job with an error, and the run with it."""
        self.store.update(job_name, lambda job: _set(job, _JOB.JOB_STATE_FAILED, message))
        self.store.update(name, lambda job: _end(job, failed=True))


class PlayedJobs:
    """Custom jobs that run only as PlayedPipelines says; deaf ones end when they are cancelled twice."""

    def __init__(self, store: Store, deaf: set[str]) -> None:
        self.store = store
        self.deaf = deaf

    def start(self, name: str) -> None:
        raise AssertionError("no custom job is created through the API here")

    def cancel(self, name: str) -> None:
        if name in self.deaf:
            self.deaf.remove(name)
            return
        self.store.update(name, lambda job: _set(job, _JOB.JOB_STATE_CANCELLED))


class PlayedDataflow(PlayedJobs):
    """Dataflow jobs that go on until they are cancelled."""

    def cancel(self, name: str) -> None:
        def change(job: Any) -> None:
            job.current_state = dataflow_types.JobState.JOB_STATE_CANCELLED

        self.store.update(name, change)

    def messages(self, name: str) -> list[Any]:
        return []


def _custom_job(name: str, pipeline: Any) -> Any:
    pools = [{"replica_count": 1, "container_spec": {"image_uri": "image"}}]
    display_name = f"{pipeline.display_name}-train"
    job = types.CustomJob(name=name, display_name=display_name, job_spec={"worker_pool_specs": pools})
    job.state, job.create_time = _JOB.JOB_STATE_PENDING, pipeline.create_time
    job.labels = {_LABEL: pipeline.labels[_LABEL]}
    return job


def _set(job: Any, state: Any, message: str = "") -> None:
    if job.state in _JOB_DONE:
        return
    job.state = state
    if message:
        job.error = {"code": 8, "message": message}


def _begin(job: Any) -> None:
    if job.state in _DONE:
        return
    job.state = _PIPELINE.PIPELINE_STATE_RUNNING
    details: list[Mapping[str, Any]] = [
        {"task_id": 1, "task_name": "tiny", "state": _TASK.RUNNING},
        {"task_id": 2, "parent_task_id": 1, "task_name": "shard", "state": _TASK.SUCCEEDED},
        {"task_id": 3, "parent_task_id": 1, "task_name": "train", "state": _TASK.RUNNING},
    ]
    job.job_detail.task_details = details
    job.job_detail.task_details[1].start_time = job.create_time


def _end(job: Any, *, failed: bool) -> None:
    if job.state in _DONE:
        return
    for detail in job.job_detail.task_details:
        if detail.state not in _TASK_DONE:
            detail.state = _TASK.FAILED if failed else _TASK.SUCCEEDED
            if failed:
                detail.error = {"code": 9, "message": "Job failed with error state: JobState.JOB_STATE_FAILED."}
    job.state = _PIPELINE.PIPELINE_STATE_FAILED if failed else _PIPELINE.PIPELINE_STATE_SUCCEEDED
    if failed:
        message = "The DAG failed because some tasks failed. The failed tasks are: [train]."
        job.error = {"code": 9, "message": message}


class Cloud:
    """The server, and what plays in it."""

    def __init__(self, folder: Path, buckets: BucketServer) -> None:
        self.store = Store()
        self.clock = Clock()
        self.pipelines = PlayedPipelines(self.store)
        jobs, dataflow = PlayedJobs(self.store, self.pipelines.deaf), PlayedDataflow(self.store, set())
        state = CloudState(self.store, self.pipelines, jobs, self.clock, {PROJECT: NUMBER}, buckets, dataflow)
        self.server = VertexServer(state, folder, Access(folder, project=PROJECT))

    def add_dataflow_job(self, job_id: str, name: str, state: str = "RUNNING", **fields: Any) -> None:
        """Add a job of Dataflow that goes on until it is cancelled, or has ended."""
        current: Any = dataflow_types.JobState[f"JOB_STATE_{state}"]
        job = dataflow_types.Job(id=job_id, name=name, current_state=current, **fields)
        self.store.add(f"projects/{NUMBER}/locations/{REGION}/jobs/{job_id}", job)


@pytest.fixture(scope="session")
def shared_cloud(tmp_path_factory: pytest.TempPathFactory, shared_bucket_server: BucketServer) -> Iterator[Cloud]:
    """One server a process: gRPC reads the certificates that it trusts once."""
    cloud = Cloud(tmp_path_factory.mktemp("cloud"), shared_bucket_server)
    with cloud.server:
        yield cloud


@pytest.fixture
def cloud(shared_cloud: Cloud, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The server with a fresh script; this process's clients and its children find it and nothing else."""
    for name, value in shared_cloud.server.environment.items():
        monkeypatch.setenv(name, value)
    shared_cloud.pipelines.script = Script()
    return shared_cloud


@pytest.fixture(scope="session")
def tiny_spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A compiled pipeline with the parameters of a line's."""
    import yaml
    from kfp import compiler, dsl

    @dsl.container_component
    def begin(region: str):  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="image", command=["true"], args=[region])

    @dsl.pipeline(name="tiny")  # type: ignore[untyped-decorator]
    def tiny(region: str, strategy: str, max_wait: str) -> None:
        begin(region=region).set_caching_options(False)
        begin(region=region)

    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    compiler.Compiler().compile(tiny, str(path))
    spec: dict[str, Any] = canonical(yaml.safe_load(path.read_text()))
    return spec


MakeConfig = Callable[..., RunConfig]


@pytest.fixture
def make_config() -> MakeConfig:
    """Make configurations of a line in the bucket."""

    def make(**sections: Mapping[str, Any]) -> RunConfig:
        values: dict[str, Any] = {
            "run": {"name": "tiny", "root": "gs://bucket-1/runs"},
            "sharding": {"source": "gs://bucket-1/raw"},
            "cloud": {"project": PROJECT, "region": REGION},
        }
        for name, changes in sections.items():
            values[name] = {**values.get(name, {}), **changes}
        return parse_config(values, where="test")

    return make


def make_ready(config: RunConfig, spec: dict[str, Any]) -> Ready:
    """Return a line as `pipelines.submit.make_ready` does, with a small spec."""
    line = storage.join(config.run.root, config.run.name)
    parameters = {"region": config.cloud.region, "strategy": "SPOT", "max_wait": "86400s"}
    documents = {storage.join(line, "configs", "0123.json"): b"{}\n"}
    plan = Plan(created=(), problems=(), warnings=(), cost=find_cost(config))
    return Ready(config, plan, CompiledLine(spec=spec, parameters=parameters, documents=documents), None)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so; two minutes at most."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
