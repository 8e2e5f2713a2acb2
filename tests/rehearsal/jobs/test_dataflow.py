"""A Dataflow job as Beam's own runner submits it: staged in the bucket, executed from there, waited for, cancelled."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from google.cloud import dataflow_v1beta3
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from rehearsal.cloud import LocalCloud
from rehearsal.machines.processes import clean_environment
from rehearsal.servers.access import Caller
from rehearsal.vertex import dataflow_jobs
from tests.rehearsal.world import LIMIT_S, PARENT, texts, wait_until

# As a launcher's process does it: a graph with a function of its own, pickled, and a side input.
SUBMIT = """
import sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

out, name, waits = sys.argv[1:4]

class Write(beam.DoFn):
    def process(self, value, total):
        import time
        from contracts import storage
        if value == "forever":
            time.sleep(600)
        if value == "fail":
            raise ValueError("a step that cannot work")
        storage.replace(f"{out}/{value}", f"{value} of {total}".encode())

options = PipelineOptions([
    "--runner=DataflowRunner", "--project=acme-vision", "--region=europe-west4", f"--job_name={name}",
    "--temp_location=gs://line/temp", "--sdk_container_image=europe-west4-docker.pkg.dev/acme/i/worker:1",
    "--sdk_location=container", "--experiments=use_runner_v2", "--experiments=disable_logging_submission_environment",
])
pipeline = beam.Pipeline(options=options)
values = pipeline | beam.Create(sys.argv[4:])
total = values | "Key" >> beam.Map(lambda value: (1, value)) | beam.GroupByKey() | beam.Map(lambda kv: len(list(kv[1])))
values | beam.ParDo(Write(), beam.pvalue.AsSingleton(total))
result = pipeline.run()
print(result.job_id(), flush=True)
if waits == "wait":
    print(result.wait_until_finish(), flush=True)
"""


@pytest.fixture
def cloud(local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> LocalCloud:
    """A cloud that is this process's own clients' too."""
    for name, value in local_cloud.environment.items():
        monkeypatch.setenv(name, value)
    return local_cloud


def _submit(cloud: LocalCloud, *arguments: str) -> tuple[str, str]:
    """Run a launcher; return the job's name in the store and what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SUBMIT, *arguments],
        env=clean_environment(cloud.environment, {"HOME": str(cloud.folder)}),
        cwd=cloud.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    job_id = done.stdout.split()[0]
    return f"{PARENT}/jobs/{job_id}", done.stdout + done.stderr


def _wait(cloud: LocalCloud, name: str) -> Any:
    ends = ("_DONE", "_FAILED", "_CANCELLED")
    job = cloud.store.wait(name, lambda job: job.current_state.name.endswith(ends), LIMIT_S)
    return job.current_state.name


def test_the_staged_pipeline_runs(cloud: LocalCloud) -> None:
    name, _ = _submit(cloud, "gs://line/out", "shard-1", "go", "a", "b")
    assert _wait(cloud, name) == "JOB_STATE_DONE", texts(cloud.logs)
    assert storage.read_bytes("gs://line/out/a") == b"a of 2"
    # By its own client, over gRPC, through the proxy.
    (asked,) = cloud.vertex.access_log.entries("JobsV1Beta3.CreateJob")
    assert asked.transport == "grpc"


@pytest.mark.slow
def test_a_failure_is_told_and_a_job_is_cancelled(cloud: LocalCloud) -> None:
    name, printed = _submit(cloud, "gs://line/out", "shard-1", "wait", "fail")
    assert _wait(cloud, name) == "JOB_STATE_FAILED"
    assert "a step that cannot work" in printed
    name, _ = _submit(cloud, "gs://line/out", "shard-2", "go", "forever")
    wait_until(lambda: cloud.dataflow.messages(name))
    # While it is active, no other job has its name.
    with pytest.raises(AssertionError, match="DataflowJobAlreadyExistsError"):
        _submit(cloud, "gs://line/out", "shard-2", "go", "forever")
    place = {"project_id": "acme-vision", "location": "europe-west4", "job_id": name.rpartition("/")[2]}
    requested: Any = dataflow_v1beta3.JobState.JOB_STATE_CANCELLED
    request = dataflow_v1beta3.UpdateJobRequest(**place, job={"requested_state": requested})
    dataflow_jobs.update(cloud.vertex.state, request, Caller("grpc"))
    assert _wait(cloud, name) == "JOB_STATE_CANCELLED"


@pytest.mark.slow
def test_two_shard_stages_of_the_same_work_at_once_are_one_job(cloud: LocalCloud) -> None:
    root = "gs://line/out"
    stage = [sys.executable, "-m", "sharding.task", "--root", f"{root}/shard"]
    stage += ["--config-json", _shards_of_pictures(root)]
    environment = clean_environment(cloud.environment, {"HOME": str(cloud.folder)})
    pipes: Any = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen(stage, **pipes) for _ in range(2)]
    ended = [process.communicate(timeout=LIMIT_S) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], ended
    (uri,) = {printed.splitlines()[-1] for printed, _ in ended}
    assert sum("runs already" in errors for _, errors in ended) == 1, ended
    (job,) = cloud.store.list(f"{PARENT}/jobs/")
    assert job.current_state.name == "JOB_STATE_DONE", texts(cloud.logs)
    assert sum(split.samples for split in ShardManifest.load(uri).splits.values()) == 12
    # A third, afterwards, finds what is there.
    again = subprocess.run(stage, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert again.returncode == 0 and again.stdout.splitlines()[-1] == uri, again.stderr


def _shards_of_pictures(root: str) -> str:
    """Publish twelve pictures of two classes; return the configuration that shards them on Dataflow."""
    for label in ("left", "right"):
        for number in range(6):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8), (number * 20, 100 if label == "left" else 200, 0)).save(picture, "png")
            storage.replace(f"{root}/raw/{label}/{number}.png", picture.getvalue())
    image = "europe-west4-docker.pkg.dev/acme/i/worker@sha256:" + "0" * 64
    config = {
        "sharding": {"source": f"{root}/raw", "splits": {"train": 0.5, "validation": 0.25, "test": 0.25}},
        "resources": {"beam_runner": "dataflow"},
        "cloud": {"project": "acme-vision", "region": "europe-west4", "images": {"cpu": image}},
    }
    return json.dumps(config)
