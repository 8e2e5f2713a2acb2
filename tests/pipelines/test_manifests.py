"""Manifests for Kubernetes: what kubectl is given, what is refused, and that the containers' commands work together.

No cluster is asked: the goldens were checked against the schemas of Kubernetes 1.32, Trainer 2.3 and JobSet 0.12.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.manifests import Kind, StageJob
from tests.conftest import small_config

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
SHARDS = {"shards": "gs://acme-line/lines/photos/shard/abc"}
IMAGE = f"us-docker.pkg.dev/acme/shardline/image@sha256:{'0' * 64}"
CASES: dict[str, tuple[dict[str, Any], str, Kind, str]] = {
    "t4-spot": ({"machine": {"type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4"}}, "train", "job", ""),
    "two-l4": ({"machine": {"type": "g2-standard-48"}, "nodes": 2}, "train", "trainjob", ""),
    "h100-kueue": (
        {"machine": {"type": "a3-highgpu-8g"}, "strategy": "FLEX_START"},
        "profile",
        "job",
        "gpus",
    ),
    "cpu": ({}, "shard", "job", ""),
}


def a_config(resources: dict[str, Any], **sections: Any) -> RunConfig:
    values = {
        "run": {"name": "photos", "root": "gs://acme-line/lines"},
        "sharding": {"source": "gs://acme-raw/photos"},
        "cloud": {
            "service_account": "shardline-runner@acme-vision.iam.gserviceaccount.com",
            "images": {"cpu": IMAGE, "gpu": IMAGE},
        },
        "resources": resources,
        **sections,
    }
    return RunConfig.model_validate(values)


def containers(document: Any) -> list[dict[str, Any]]:
    """Return what has a command, wherever it is."""
    if isinstance(document, dict):
        return [document] * ("args" in document) + [each for value in document.values() for each in containers(value)]
    return [each for value in document for each in containers(value)] if isinstance(document, list) else []


@pytest.mark.parametrize("name", CASES)
def test_documents(name: str) -> None:
    resources, stage, kind, queue = CASES[name]
    inputs = {} if stage == "shard" else SHARDS
    documents = StageJob(a_config(resources), stage, inputs, queue).documents(kind)
    for container in containers(documents):
        # Its keys change with the configuration's.
        place = next(at for at, text in enumerate(container["args"]) if text.startswith("--config-json={"))
        container["args"][place] = "--config-json={...}"
    assert documents == list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


def test_machines_with_networks_of_their_own_name_them() -> None:
    job = StageJob(a_config({"machine": {"type": "a3-highgpu-8g"}, "nodes": 2}), "train", SHARDS, "", list("abcd"))
    (*_, document) = job.documents("job")
    interfaces = document["spec"]["template"]["metadata"]["annotations"]["networking.gke.io/interfaces"]
    assert interfaces.count("interfaceName") == 5 and '{"interfaceName": "eth4", "network": "d"}' in interfaces


LONG_NAME = {"name": "photos-of-the-whole-company-since-2019-and-more", "root": "gs://acme-line/lines"}
REFUSED: dict[str, tuple[str, Kind, dict[str, str], dict[str, Any]]] = {
    "up to 46": ("shard", "job", {}, {"run": LONG_NAME}),
    "run.root = .*\n.*gs://BUCKET": ("shard", "job", {}, {"run": {"name": "photos", "root": "runs"}}),
    "--kind job": ("shard", "trainjob", {}, {}),
    "--shards URI": ("train", "job", {}, {}),
    "--shards = .*\n.*gs://BUCKET": ("train", "job", {"shards": "runs/x"}, {}),
    "no input": ("shard", "job", SHARDS, {}),
    "8 names": ("train", "job", SHARDS, {"resources": {"machine": {"type": "a3-megagpu-8g"}, "nodes": 2}}),
    "a TPU": ("train", "job", SHARDS, {"resources": {"machine": {"type": "ct5lp-hightpu-4t"}}}),
    "folders of this machine": ("train", "job", SHARDS, {"code": {"path": "examples"}, "task": {"name": "a:B"}}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_run_is_refused(message: str) -> None:
    stage, kind, inputs, sections = REFUSED[message]
    with pytest.raises(ConfigError, match=message):
        StageJob(a_config(sections.pop("resources", {}), **sections), stage, inputs).documents(kind)


@pytest.mark.line
@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_the_containers_train_together_and_go_on_when_a_pod_is_replaced(
    kind: Kind, small_shards: str, free_tcp_port: int, tmp_path: Path
) -> None:
    """Two pods as processes with the variables that the controllers inject; bucket and names are this machine's."""
    trained = small_config(train={"epochs": 6}, checkpoint={"every_steps": 3})
    trained = {name: values for name, values in trained.items() if name not in ("run", "sharding", "resources")}
    config = a_config({"nodes": 2, "ranks": 1, "port": free_tcp_port}, **trained)
    (container,) = containers(StageJob(config, "train", SHARDS).documents(kind))
    replaced = {f"--shards={SHARDS['shards']}": f"--shards={small_shards}"}
    replaced["--root=gs://acme-line/lines/photos/train"] = f"--root={tmp_path}"
    command = [sys.executable, *container["command"][1:], *(replaced.get(text, text) for text in container["args"])]
    given = {each["name"]: each.get("value", "uid") for each in container["env"]}

    def start(index: int) -> subprocess.Popen[bytes]:
        injected = {
            "job": {"JOB_COMPLETION_INDEX": str(index), "MASTER_ADDR": "localhost"},
            "trainjob": {
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "1",
                "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": "localhost",
                "PET_MASTER_PORT": str(free_tcp_port),
                "JOB_COMPLETION_INDEX": str(index),
            },
        }[kind]
        with (tmp_path / f"log{index}").open("ab") as log:
            return subprocess.Popen(command, env={**os.environ, **given, **injected}, stdout=log, stderr=log)

    pods = [start(0), start(1)]
    try:
        deadline = time.monotonic() + 120
        while not any(tmp_path.glob("*/checkpoints/*/manifest.json")):
            assert all(pod.poll() is None for pod in pods) and time.monotonic() < deadline
            time.sleep(0.05)
        pods[1].send_signal(signal.SIGKILL)
        pods[1].wait()
        pods[1] = start(1)
        assert [pod.wait(timeout=240) for pod in pods] == [0, 0], (tmp_path / "log0").read_text()[-2000:]
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    assert "continues from" in (tmp_path / "log0").read_text()
