import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from packaging.requirements import Requirement

from contracts.canonical import canonical_json
from contracts.resolve import parse_config
from pipelines.build import find_checkout
from pipelines.compile import CompiledLine, compile_line
from pipelines.plan import make_plan
from pipelines.prebuilt import (
    BEAM_IMAGE,
    build_wheel,
    image_uri,
    prebuilt_container,
    requirements_wheel,
)
from rehearsal.gcs import BucketServer
from rehearsal.machines.processes import clean_environment
from sharding.runners.dataflow import dataflow_flags
from tests.golden.write_lines import GOLDEN, prebuilt_jobs
from tests.golden.write_lines import PREBUILT as PREBUILT_JOBS
from tests.pipelines.test_plan import DIGEST, config

WORKERS = f"vertex.dataflow.worker_image=us-docker.pkg.dev/p/r/beam{DIGEST}"
SERVING = f"serving: 'us-docker.pkg.dev/p/r/triton{DIGEST}'"
PREBUILT = ("resources.container=prebuilt", f"vertex.images={{{SERVING}}}", WORKERS)
PROGRAM = (find_checkout() / "pipelines" / "prebuilt_start.py").read_text()


def test_the_wheel_is_the_same_each_time() -> None:
    name, first = build_wheel(find_checkout())
    build_wheel.cache_clear()
    assert build_wheel(find_checkout()) == (name, first)
    names = zipfile.ZipFile(BytesIO(first)).namelist()
    assert "trainer/task.py" in names
    assert "sharding/task.py" in names
    assert not [entry for entry in names if entry.startswith(("tests/", "docker/"))]


def test_a_container_is_an_image_a_start_and_what_must_be_in_the_bucket() -> None:
    found = prebuilt_container(config(*PREBUILT), "train")
    assert found.image == "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
    wheel_uri, wheel_sha256, constraints_uri, constraints_sha256, extras, dashes = found.start[3:]
    assert found.start[:3] == ("python3", "-c", PROGRAM)
    assert (extras, dashes) == ("train,bucket", "--")
    assert hashlib.sha256(found.documents[wheel_uri]).hexdigest() == wheel_sha256
    assert hashlib.sha256(found.documents[constraints_uri]).hexdigest() == constraints_sha256
    assert wheel_uri.startswith("gs://my-bucket/runs/flowers/packages/")
    assert wheel_uri.endswith("-py3-none-any.whl")
    assert wheel_sha256 in found.identity


def test_the_image_is_near_and_has_cuda_where_there_are_gpus() -> None:
    europe = config(*PREBUILT, "vertex.region=europe-west4", "resources.serving_machine.type=n1-standard-8")
    assert image_uri(europe, "train").startswith("europe-docker.pkg.dev/vertex-ai/training/pytorch-gpu")
    assert image_uri(europe, "export").startswith("europe-docker.pkg.dev/vertex-ai/training/pytorch-cpu")
    assert image_uri(europe, "pipeline").startswith("europe-docker.pkg.dev/vertex-ai/training/pytorch-cpu")


def executors(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry["container"] for entry in spec["deploymentSpec"]["executors"].values() if "container" in entry]


def test_a_line_of_prebuilt_containers_compiles() -> None:
    compiled = compile_line(config(*PREBUILT))
    assert "pip install" not in canonical_json(compiled.spec)
    wheels = [uri for uri in compiled.documents if uri.endswith(".whl")]
    assert len(wheels) == 1
    ours = [entry for entry in executors(compiled.spec) if "vertex-ai/training" in entry["image"]]
    assert ours
    for container in ours:
        assert container["command"][:3] == ["python3", "-c", PROGRAM]
        assert "python" in container["command"][9:]
    assert "pytorch-gpu.2-4.py310" in canonical_json(compiled.spec)
    assert compile_line(config(*PREBUILT)).spec == compiled.spec


def test_jobs_of_prebuilt_containers_are_golden() -> None:
    expected = json.loads((GOLDEN / PREBUILT_JOBS).read_text())
    assert prebuilt_jobs() == expected, "a wanted change? python tests/golden/write_lines.py"
    assert sorted(name.partition("/")[0] for name in expected)


def test_images_need_no_packages() -> None:
    compiled = compile_line(config())
    assert not [uri for uri in compiled.documents if "/packages/" in uri]
    assert "prebuilt" not in canonical_json(compiled.spec)


def test_an_image_that_is_named_is_taken_as_it_is() -> None:
    mixed = config(
        "resources.container=prebuilt",
        f"vertex.images={{pipeline: 'us-docker.pkg.dev/p/r/pipeline{DIGEST}', {SERVING}}}",
    )
    compiled = compile_line(mixed)
    assert all("vertex-ai/training" not in entry["image"] for entry in executors(compiled.spec))
    assert "pytorch-gpu.2-4.py310" in canonical_json(compiled.spec)


def shard_section(compiled: CompiledLine) -> dict[str, Any]:
    uri = compiled.parameters["shard_config"].partition("@")[0]
    section: dict[str, Any] = json.loads(compiled.documents[uri])
    return section


def test_workers_of_dataflow_install_the_project_too() -> None:
    compiled = compile_line(
        config("resources.container=prebuilt", f"vertex.images={{{SERVING}}}", "resources.beam_options=['--x']")
    )
    section = shard_section(compiled)
    assert section["vertex"]["dataflow"]["worker_image"] == BEAM_IMAGE
    *packages, own = section["resources"]["beam_options"]
    assert own == "--x"
    for option in packages:
        assert option.removeprefix("--extra_package=") in compiled.documents
    options = PipelineOptions(dataflow_flags(parse_config(section, where="test"), job_name="j", output_uri="gs://b/o"))
    assert len(options.view_as(SetupOptions).extra_packages) == 2
    given = shard_section(compile_line(config(*PREBUILT)))
    assert given["vertex"]["dataflow"]["worker_image"].endswith(DIGEST)
    assert given["resources"]["beam_options"] == []
    assert any("until 2026-07-24" in text for text in make_plan(config(*PREBUILT)).warnings)


def test_the_image_of_beam_is_that_of_the_constraints() -> None:
    lines = (find_checkout() / "constraints" / "constraints.txt").read_text().splitlines()
    (beam,) = [line.partition("==")[2] for line in lines if line.startswith("apache-beam==")]
    assert f"apache/beam_python3.11_sdk:{beam}" == BEAM_IMAGE


def test_the_wheel_of_requirements_is_one_and_requires_what_is_pinned(tmp_path: Path) -> None:
    name, content = requirements_wheel(find_checkout())
    assert requirements_wheel(find_checkout()) == (name, content)
    (tmp_path / name).write_bytes(content)
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", "to", f"./{name}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "to")])
    assert found.version == tomllib.loads((find_checkout() / "pyproject.toml").read_text())["project"]["version"]
    required = [Requirement(line) for line in found.requires or []]
    assert {"numpy", "pillow", "pyarrow", "simplejpeg", "pydantic", "fsspec", "gcsfs"} <= {
        r.name.lower() for r in required
    }
    assert not [entry for entry in required if entry.name == "apache-beam"]
    for entry in required:
        # The environment of the tests is the constraints'.
        assert importlib.metadata.version(entry.name) in entry.specifier


@contextmanager
def serve(folder: Path, objects: Mapping[str, bytes]) -> Iterator[str]:
    """Serve a bucket that holds these objects, by URI; yield the address."""
    for uri, content in objects.items():
        path = folder / uri.removeprefix("gs://")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with BucketServer(folder) as server:
        yield server.endpoint


def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_in_a_rehearsal_the_project_is_there_already() -> None:
    packages = ("gs://nowhere/w.whl", "0", "gs://nowhere/c", "0", "train", "--")
    said = "import sys; print(sys.argv[1:]); sys.exit(7)"
    answer = start(*packages, "python", "-c", said, "--x", "a b\n'c'", **clean_environment({}))
    assert answer.returncode == 7
    assert answer.stdout == "['--x', \"a b\\n'c'\"]\n"


def test_what_cannot_be_fetched_ends_the_job(tmp_path: Path) -> None:
    with serve(tmp_path, {"gs://my-bucket/w.whl": b"something else"}) as endpoint:
        rest = ("gs://my-bucket/c", "0", "", "--", "true")
        missing = start("gs://my-bucket/absent.whl", "0", *rest, STORAGE_EMULATOR_HOST=endpoint)
        other = start("gs://my-bucket/w.whl", "0" * 64, *rest, STORAGE_EMULATOR_HOST=endpoint)
    assert missing.returncode == 2
    assert "gs://my-bucket/absent.whl cannot be read: HTTP 404" in missing.stderr
    assert other.returncode == 2
    assert "has another content than the one that was submitted" in other.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_project_is_installed_and_becomes_the_stage(tmp_path: Path) -> None:
    found = prebuilt_container(config(*PREBUILT), "train")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with serve(tmp_path / "buckets", found.documents) as endpoint:
        # Without the extras: what torch brings takes minutes, and shows nothing more.
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM, *found.start[3:7], "", "--", "python", "-m", "trainer.task", "--help"],
            cwd=tmp_path,
            env={**clean, "STORAGE_EMULATOR_HOST": endpoint},
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    assert "usage:" in answer.stdout
    assert "prebuilt: installed in" in answer.stderr
