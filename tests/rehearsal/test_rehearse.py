"""`shardline rehearse`: the whole line by the real clients against the local cloud. Each takes minutes: slow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.canonical import canonical_hash
from contracts.config import STAGES
from tests.browser import opened, started_chromium
from tests.conftest import small_config
from tests.pipelines.images import REGISTERED
from tests.rehearsal.artifacts import FOLDERS, check_artifact, follow_served, reported_artifacts

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs" / "digits-vertex.yaml"
# A fault about every 50 requests of each kind, a reset among them.
FAULTS = [
    {"operation": "objects.media", "probability": 0.02, "status": 503, "seed": 1},
    {"operation": "objects.get", "probability": 0.02, "status": 503, "seed": 2},
    {"operation": "uploads", "probability": 0.02, "reset": True, "seed": 3},
    {"operation": "objects.media", "nth": [40, 400], "reset_at": 100},
]


def shardline(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, a home and a temporary folder of its own."""
    places = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "tmp"}
    for place in (*places.values(), tmp_path / "work"):
        place.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(place) for name, place in places.items()}}
    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        cwd=tmp_path / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def rehearse(tmp_path: Path, *words: object) -> tuple[dict[str, Any], Path]:
    """Rehearse, and return what the command printed and the folder that it kept."""
    done = shardline(tmp_path, "rehearse", *words, "--keep", tmp_path / "kept", "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, (found["complaints"], done.stdout, done.stderr)
    return found, tmp_path / "kept"


def requests_of(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (kept / "vertex-requests.jsonl").read_text().splitlines()]


def write_small(tmp_path: Path, **sections: dict[str, Any]) -> Path:
    """Write a configuration of a few seconds' work."""
    resources = {"machine": {"type": "n1-standard-4"}, "ranks": 1, **sections.pop("resources", {})}
    values = small_config(run={"name": "small"}, profile={"window_s": 0.05}, resources=resources, **sections)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.line
def test_the_digits_from_images_in_a_bucket_to_an_engine_with_two_preemptions(tmp_path: Path) -> None:
    raw, faults = tmp_path / "raw", tmp_path / "faults.json"
    subprocess.run([sys.executable, "examples/digits.py", str(raw)], cwd=ROOT, check=True, capture_output=True)
    faults.write_text(json.dumps(FAULTS))
    # The run's last task writes a row of it.
    given = (DIGITS, *REGISTERED, "vertex.experiment=digits")
    found, kept = rehearse(tmp_path, *given, "--source", raw, "--preempt", 2, "--faults", faults)

    assert found["complaints"] == [] and found["refused_hosts"] == []
    assert sorted(gone["kind"] for gone in found["preempted"]) == ["sigkill", "sigterm"]
    assert 0 in {gone["node"] for gone in found["preempted"]}
    # Who was told waited to be killed.
    assert {gone["kind"]: gone["escalated"] for gone in found["preempted"]} == {"sigterm": True, "sigkill": False}
    # 1,078 training images in steps of 64 over twelve epochs.
    assert all(0 < gone["step"] < 17 * 12 for gone in found["preempted"])
    assert found["faults"] > 0
    assert found["comparison"] == {"shards": True, "parameters": found["parameters"], "reason": ""}
    assert found["parameters"] is not None

    # What was submitted is what is compiled.
    done = shardline(tmp_path, "compile", *given, "--to", tmp_path / "line.yaml")
    assert f"sha256:{found['hash']}" in done.stdout
    assert found["hash"] == canonical_hash(yaml.safe_load((tmp_path / "line.yaml").read_text()))

    # Every artifact went through the bucket's API, and nothing else was written.
    line = kept / "buckets" / "acme-vision-line" / "lines" / "digits"
    bucket = kept / "buckets" / "acme-vision-line"
    artifacts = {path.relative_to(bucket).as_posix() for path in line.rglob("*") if path.is_file()}
    accesses = [json.loads(row) for row in (kept / "bucket-requests.jsonl").read_text().splitlines()]
    written = {
        row["object"]
        for row in accesses
        if row["bucket"] == "acme-vision-line" and row["method"] in ("POST", "PUT") and 200 <= row["status"] < 300
    }
    assert len([name for name in artifacts if name.endswith("/manifest.json")]) >= 4
    assert artifacts <= written, sorted(artifacts - written)[:5]
    left = [path for name in ("home", "tmp", "work") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert left == []
    check_what_the_console_is_left(kept, bucket)
    record = json.loads((line / "run.json").read_text())
    exported = record["results"]["export"]
    assert (record["state"], exported["runtime"]) == ("succeeded", "onnx")
    assert exported["served"]["name"] == "triton/classifier/1/model.onnx"
    assert [row["status"] for row in requests_of(kept) if row["method"].endswith("UploadModel")] == ["OK"]


def check_what_the_console_is_left(kept: Path, bucket: Path) -> None:
    """Assert that consoles render the artifacts of each stage, which lead from the served file to the raw files."""
    job = json.loads((kept / "PipelineJob.json").read_text())[0]
    found = reported_artifacts(job)
    assert set(found) == set(STAGES)
    for stage, artifacts in found.items():
        classes = {"classes"} if stage == "train" else set()
        assert set(artifacts) == {FOLDERS[stage], "metrics", "summary", "page"} | classes
        for name, artifact in artifacts.items():
            made = check_artifact(name, artifact)
            path = bucket / artifact["uri"].removeprefix("gs://acme-vision-line/")
            if name == FOLDERS[stage]:
                assert (path / "manifest.json").is_file()
            if name == "page":
                assert "said" not in made.metadata, made.metadata["said"]
                with started_chromium() as browser, opened(browser, path) as shown:
                    # A file without an ending is read by its content here; what a console does is its own matter.
                    assert shown.complaints == []
    metrics = found["train"]["metrics"]["metadata"]
    assert metrics["train_test_accuracy"] > 0.9 and metrics["train_preemptions"] > 0
    assert len(found["train"]["classes"]["metadata"]["confusionMatrix"]["rows"]) == 10
    served, _, _, listing = follow_served(found)
    assert len(served) == len(listing) == 64
    contexts = json.loads((kept / "Context.json").read_text())
    (row,) = (one for one in contexts if one["schemaTitle"] == "system.ExperimentRun")
    assert row["metadata"]["_metrics"]["train_test_accuracy"] == metrics["train_test_accuracy"]
    assert row["metadata"]["_state"] == "COMPLETE"


@pytest.mark.slow
def test_a_configuration_for_gpus_goes_through_the_launcher(tmp_path: Path, pictures: Path) -> None:
    text = 'say "hi"\nand go'
    config = write_small(
        tmp_path,
        sharding={"source": str(pictures)},
        resources={
            "machine": {
                "type": "n1-standard-8",
                "accelerator_type": "NVIDIA_TESLA_T4",
                "boot_disk_gb": 150,
            },
            "strategy": "STANDARD",
            "ranks": "auto",
            "env": {"GREETING": text},
        },
    )
    found, kept = rehearse(tmp_path, config)
    jobs = {job["displayName"]: job for job in json.loads((kept / "CustomJob.json").read_text())}
    for name in ("small-profile", "small-train", "small-export"):
        (pool,) = jobs[name]["jobSpec"]["workerPoolSpecs"]
        assert pool["machineSpec"]["acceleratorCount"] == 1
        assert pool["diskSpec"] == {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 150}
    (pool,) = jobs["small-train"]["jobSpec"]["workerPoolSpecs"]
    assert {"name": "GREETING", "value": text} in pool["containerSpec"]["env"]
    # One GPU is one process; without the GPU here that takes a variable of the runner, not another specification.
    assert found["variables"]["PET_NPROC_PER_NODE"] == "1"
    # Not proven on a GPU: the gate lets nothing through, and the run is none the worse.
    assert not [row for row in requests_of(kept) if row["method"].endswith("UploadModel")]


@pytest.mark.slow
def test_a_weekly_schedule_shards_only_what_is_new(tmp_path: Path, pictures: Path) -> None:
    config = write_small(
        tmp_path,
        sharding={"source": str(pictures), "incremental": True},
        schedule={"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"},
    )
    found, kept = rehearse(tmp_path, config, "--schedule-days", 14)
    assert [state for _, state in found["fired"]] == ["PIPELINE_STATE_SUCCEEDED"] * 2
    jobs = [job["displayName"] for job in json.loads((kept / "CustomJob.json").read_text())]
    # The second run has all in the cache.
    assert jobs == ["small-profile", "small-train", "small-export"]


@pytest.mark.slow
def test_a_run_survives_a_stockout_and_faults_of_buckets(tmp_path: Path, pictures: Path) -> None:
    config = write_small(
        tmp_path,
        sharding={"source": str(pictures)},
        resources={"regions": ["us-east4"]},
    )
    found, _ = rehearse(tmp_path, config, "--stockout", "us-central1", "--storage-faults", 0.01)
    text = "\n".join(found["effects"])
    assert "no machines in us-central1: small-profile" in text
    assert "answered with 503" in text
    assert found["comparison"] == {"shards": True, "parameters": found["parameters"], "reason": ""}


@pytest.mark.slow
def test_the_summary_says_what_ended_a_run(tmp_path: Path, pictures: Path) -> None:
    config = write_small(tmp_path, sharding={"source": str(pictures)})
    done = shardline(tmp_path, "rehearse", config, "--stockout", "us-central1")
    assert done.returncode == 1
    assert "error: the rehearsal failed:" in done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("happened") for line in lines)
    assert any(line.startswith("ended by the region has no such machines left now") for line in lines), done.stdout
