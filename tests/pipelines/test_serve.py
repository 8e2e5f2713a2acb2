"""`shardline serve --dry-run`: the command, the requests, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest
from contracts.serving import NO_RELEASE, cache_folder
from pipelines.cli import app
from tests.contracts.test_proof import MODEL, make_engine, make_served

SM90 = {"builder": "tensorrt 11.3.0.14", "target": "sm90"}


def publish(folder: Path, runtime: Any, **engine: Any) -> ExportManifest:
    """Write what an export serves, and its manifest."""
    uri = storage.normalise(folder)
    document = make_served(uri, "sm89", lacks=["a provider"])
    assert document.served is not None
    engines = [make_engine("sm89").model_copy(update=engine)] if engine else []
    changes = {"served": document.served.model_copy(update={"runtime": runtime}), "engines": engines}
    document = document.model_copy(update=changes).sealed()
    (folder / MANIFEST_NAME).write_bytes(document.to_json())
    return document


def serve(folder: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", str(folder), *options])
    return result.exit_code, result.output


def requests_of(said: str) -> dict[str, dict[str, Any]]:
    """Return the bodies of the requests, by the end of their address."""
    parts = said.partition("POST ")[2].split("POST ")
    return {part.partition("\n")[0].rpartition("/")[2]: json.loads(part.partition("\n")[2]) for part in parts}


def test_the_command_and_the_requests_are_printed(tmp_path: Path) -> None:
    document = publish(tmp_path, "onnxruntime_tensorrt")
    code, said = serve(tmp_path, "--dry-run")
    assert code == 0 and document.served is not None
    (docker,) = [line for line in said.splitlines() if line.startswith("docker run")]
    assert f"-v {tmp_path}/triton:/models:ro" in docker
    # The plan that is built when the model is loaded outlives the container.
    assert f":{cache_folder(document.served.sha256)} nvcr.io/nvidia/tritonserver:" in docker
    assert "unproven: a provider; no server has loaded it here" in said
    assert f"{MODEL} (sha256 {document.served.sha256[:12]}) ran by onnxruntime 1 CPUExecutionProvider" in said
    assert "the newest release known on" in said
    requests = requests_of(said)
    assert list(requests) == ["models:upload", "endpoints", "ENDPOINT:deployModel"]
    container = requests["models:upload"]["model"]["containerSpec"]
    assert container["imageUri"] in docker and "--vertex-ai-default-model=classifier" in container["args"]
    machine = requests["ENDPOINT:deployModel"]["deployedModel"]["dedicatedResources"]["machineSpec"]
    assert machine == {"machineType": "g2-standard-4", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}


def test_a_plan_is_served_by_its_release_on_its_gpu(tmp_path: Path) -> None:
    publish(tmp_path, "tensorrt", **SM90)
    code, said = serve(tmp_path, "--dry-run")
    assert code == 0 and "tritonserver:26.09-py3 tritonserver" in said and "shardline-plans" not in said
    machine = requests_of(said)["ENDPOINT:deployModel"]["deployedModel"]["dedicatedResources"]["machineSpec"]
    assert machine["acceleratorType"] == "NVIDIA_H100_80GB"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({**SM90, "builder": "tensorrt 11.9.0.1"}, NO_RELEASE),
        ({**SM90, "target": "sm86"}, "no machine with a GPU of sm86"),
    ],
)
def test_what_no_service_has_is_said_in_place_of_its_lines(tmp_path: Path, engine: dict[str, Any], words: str) -> None:
    publish(tmp_path, "tensorrt", **engine)
    code, said = serve(tmp_path, "--dry-run")
    assert code == 0 and words in said and "POST" not in said
    assert ("docker run" in said) == (words != NO_RELEASE)


def test_without_dry_run_and_of_other_files_it_ends_with_2(tmp_path: Path) -> None:
    publish(tmp_path, "tensorrt", **SM90)
    assert serve(tmp_path)[0] == 2
    (tmp_path / MODEL).write_bytes(b"another")
    code, said = serve(tmp_path, "--dry-run")
    assert code == 2 and "docker run" not in said
