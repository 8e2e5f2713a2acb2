"""The local cloud put together: the model registry, and a schedule whose second run sees new files."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import aiplatform_v1
from google.oauth2.credentials import Credentials
from kfp import compiler, dsl

from components.container import with_image
from components.register import register
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Gate, ShardManifest
from contracts.config import RunConfig
from contracts.config.load import load_config, stage_config
from contracts.machines import serving_section
from inspection.run.events import find_output
from pipelines.pipeline import custom_job
from rehearsal.clock import Clock
from rehearsal.cloud import BUCKETS_FOLDER, LocalCloud
from tests.conftest import small_config, write_pictures
from tests.contracts.test_proof import make_served
from tests.pipelines.images import REGISTERED

ROOT = Path(__file__).parents[2]
PROJECT, NUMBER = "acme-vision", "123456789012"
FINAL = ("PIPELINE_STATE_SUCCEEDED", "PIPELINE_STATE_FAILED", "PIPELINE_STATE_CANCELLED")
SERVING = "us-central1-docker.pkg.dev/acme-vision/shardline/triton@sha256:" + "5" * 64
EXPORT = "gs://line-1/lines/digits/export/0123456789abcdef"
PASSED = Gate(name="engine sm80", precision="fp32", status="passed", ran="a GPU")
DAY_S = 86400.0


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    """A local cloud that this process's own clients use too."""
    with LocalCloud(tmp_path / "cloud", projects={PROJECT: NUMBER}, buckets=["line-1"]) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def test_a_fault_of_a_thread_is_told_at_the_end_and_schedules_end_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = LocalCloud(tmp_path / "cloud", projects={PROJECT: NUMBER})
    fired: list[bool] = []
    for part in (cloud.custom_jobs, cloud.dataflow, cloud.pipelines):
        monkeypatch.setattr(part, "close", lambda: fired.append(cloud.vertex._schedule_runner._thread.is_alive()))
    with pytest.raises(RuntimeError, match="a fault of ours"), cloud:
        cloud.dataflow.failures.append("a fault of ours")
    assert fired == [False] * 3


def shardline(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobs_of(cloud: LocalCloud) -> list[Any]:
    return [job for job in cloud.store.list("projects/") if type(job).__name__ == "PipelineJob"][::-1]


def wait_for_runs(cloud: LocalCloud, count: int) -> list[Any]:
    deadline = time.monotonic() + 900
    while len(found := jobs_of(cloud)) < count or any(job.state.name not in FINAL for job in found):
        assert time.monotonic() < deadline, [(job.name, job.state.name) for job in found]
        time.sleep(0.2)
    return found


# Gives out a folder that is there.
GIVE = f"""
import sys
from components.task import Task
task = Task.parse(sys.argv[1])
task.set_artifact("served", {{}}, uri={EXPORT!r})
task.finish()
"""


@dsl.container_component  # type: ignore[untyped-decorator]
def exported(served: dsl.Output[dsl.Model]) -> dsl.ContainerSpec:
    words = [dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
    return dsl.ContainerSpec(image=SERVING, command=["python", "-c", GIVE], args=words)


def submit_register(cloud: LocalCloud, tmp_path: Path, *overrides: str) -> Any:
    """Submit a pipeline that only registers an export; return its job when it has ended."""
    given = [
        *REGISTERED,
        "export.allow_unproven=false",
        "run.root=gs://line-1/lines",
        f"cloud.images.serving={SERVING}",
        *overrides,
    ]
    config = load_config(ROOT / "configs" / "digits-vertex.yaml", given)
    job = custom_job(config, with_image(register, SERVING), "register", serving_section(config))

    @dsl.pipeline(name="register-only")  # type: ignore[untyped-decorator]
    def pipeline(config: str) -> None:
        job(config=config, served=exported().outputs["served"], project=PROJECT, location="us-central1")

    path = tmp_path / "register.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    client = aiplatform_v1.PipelineServiceClient(
        transport="rest",
        credentials=Credentials(cloud.vertex.access.token),
        client_options={"api_endpoint": cloud.vertex.endpoint},
    )
    message = aiplatform_v1.PipelineJob(
        display_name="register",
        pipeline_spec=yaml.safe_load(path.read_text()),
        runtime_config={
            "gcs_output_directory": "gs://line-1/pipeline",
            "parameter_values": {"config": json.dumps(stage_config(config, "register"))},
        },
    )
    client.create_pipeline_job(parent=f"projects/{PROJECT}/locations/us-central1", pipeline_job=message)
    return wait_for_runs(cloud, len(jobs_of(cloud)))[-1]


def said(cloud: LocalCloud) -> str:
    return "\n".join(entry["jsonPayload"]["message"] for entry in cloud.logs.entries())


def publish_export(**changes: Any) -> None:
    storage.replace(storage.join(EXPORT, MANIFEST_NAME), make_served(EXPORT, "sm80", **changes).to_json())


def uploads(cloud: LocalCloud) -> list[Any]:
    return [entry for entry in cloud.vertex.access_log.entries() if "UploadModel" in entry.method]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_proven_export_becomes_a_model_and_the_next_one_its_version(cloud: LocalCloud, tmp_path: Path) -> None:
    for version in ("1", "2"):
        publish_export(gates=[PASSED], verdict="proven", fingerprint=16 * version)
        for label in ("a", "b"):
            # Another task for KFP's cache; the export is registered already.
            job = submit_register(cloud, tmp_path, f"cloud.labels={json.dumps({'try': label + version})}")
        assert job.state.name == "PIPELINE_STATE_SUCCEEDED", said(cloud)
        assert len(uploads(cloud)) == int(version)
    client = aiplatform_v1.ModelServiceClient(
        transport="rest",
        credentials=Credentials(cloud.vertex.access.token),
        client_options={"api_endpoint": cloud.vertex.endpoint},
    )
    (model,) = client.list_models(parent=f"projects/{PROJECT}/locations/us-central1")
    versions = list(client.list_model_versions(name=model.name))
    assert {found.version_id for found in versions} == {"1", "2"}
    (newest,) = (found for found in versions if found.version_id == "2")
    assert "latest" in newest.version_aliases
    assert newest.artifact_uri == f"{EXPORT}/triton"
    spec = newest.container_spec
    assert spec.image_uri == SERVING
    assert (spec.predict_route, spec.health_route) == ("/predict", "/health")
    assert [port.container_port for port in spec.ports] == [8080]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gate_refuses_and_nothing_is_uploaded(cloud: LocalCloud, tmp_path: Path) -> None:
    publish_export()
    job = submit_register(cloud, tmp_path)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error
    assert not uploads(cloud)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_files_that_come_between_two_runs_of_a_schedule_are_all_that_the_second_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cloud"
    raw = folder / BUCKETS_FOLDER / "line-1" / "raw"
    write_pictures(raw)
    more = write_pictures(tmp_path / "more", per_class=8)
    config = RunConfig.model_validate(
        small_config(
            run={"name": "weekly", "root": "gs://line-1/lines"},
            sharding={"source": "gs://line-1/raw", "incremental": True},
            profile={"window_s": 0.05},
            resources={"machine": {"type": "n1-standard-4"}, "ranks": 1},
            schedule={"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"},
            cloud={
                "project": PROJECT,
                "region": "us-central1",
                "images": {role: f"a.io/{role}@sha256:{'0' * 64}" for role in ("pipeline", "trainer", "export")},
            },
            vertex={"model": {"upload": False}},
        )
    )
    path = tmp_path / "weekly.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    # A Sunday in autumn: summer time ends between the two runs.
    clock = Clock(start=1792323600.0)
    with LocalCloud(folder, projects={PROJECT: NUMBER}, buckets=["line-1"], clock=clock) as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        shardline("schedule", "create", path)
        manifests = []
        for week in (1, 2):
            clock.advance(7 * DAY_S)
            run = wait_for_runs(cloud, week)[-1]
            assert run.state.name == "PIPELINE_STATE_SUCCEEDED", run.error
            run_id = run.name.rpartition("/")[2]
            made = find_output("gs://line-1/lines/weekly", run_id, "shard")
            assert made is not None
            manifests.append(ShardManifest.load(made))
            start = json.loads(storage.read_bytes(f"gs://line-1/lines/weekly/runs/{run_id}/run-start.json"))
            # Six in the morning in Berlin: four in summer, five in winter.
            assert start["data_date"] == {1: "2026-10-19T06:00:00+02:00", 2: "2026-10-26T06:00:00+01:00"}[week]
            for picture in more.rglob("*.png"):
                name = f"{picture.stem}-new.png"
                storage.replace(storage.join("gs://line-1/raw", picture.parent.name, name), picture.read_bytes())
        first, second = manifests
        assert sum(split.samples for split in first.splits.values()) == 120
        assert sum(split.samples for split in second.splits.values()) == 144
        reused = [entry for entry in second.shards if entry.folder]
        assert reused and sum(entry.samples for entry in second.shards if not entry.folder) == 24
    shutil.rmtree(folder)
