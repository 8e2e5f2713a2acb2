"""The registry and the alias `production`: by the real SDK, in the local Vertex; the judge is a double."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from google.cloud import aiplatform

from components import register_model
from components.entry import main
from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.promote import promote
from tests.components.test_gate import COMPARISON
from tests.export_fields import publish_export
from tests.pipelines.test_promote import leave_run
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud, MakeConfig

SERVING = f"us-central1-docker.pkg.dev/acme/shardline/triton@sha256:{'5' * 64}"
A, B, C = ("a" * 16, "b" * 16, "c" * 16)


@pytest.fixture
def config(cloud: Cloud, make_config: MakeConfig, request: pytest.FixtureRequest) -> RunConfig:
    """Of a line of its own: the registry is the session's."""
    name = request.node.name[:40].lower()
    return make_config(run={"name": name}, cloud={"images": {"serving": SERVING}}, register={"upload": True})


def line_of(config: RunConfig) -> str:
    return storage.join(config.run.root, config.run.name)


def register(config: RunConfig, fingerprint: str, monkeypatch: pytest.MonkeyPatch, code: int, **changes: Any) -> Any:
    """Register an export as run-FINGERPRINT, with a judge that ends with a code; return the artifact and the record."""

    def judge(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, code, json.dumps(COMPARISON).encode(), b"judge: error: no")

    monkeypatch.setattr(register_model, "run_to_end", judge)
    line, run_id = line_of(config), f"run-{fingerprint[0]}"
    uri = storage.join(line, "export", fingerprint)
    publish_export(uri, fingerprint=fingerprint, **changes)
    shards = storage.join(line, "shard", "0" * 16)
    storage.replace(storage.join(shards, MANIFEST_NAME), b"{}")
    root = f"{line}/pipeline/1/{run_id}/register"
    inputs = {name: {"artifacts": [{"uri": found}]} for name, found in (("served", uri), ("shards", shards))}
    outputs = {name: {"artifacts": [{"uri": f"{root}/{name}"}]} for name in ("registered", "summary")}
    message = {
        "inputs": {"parameterValues": {"config": config.model_dump_json()}, "artifacts": inputs},
        "outputs": {"artifacts": outputs, "outputFile": f"{root}/executor_output.json"},
    }
    assert main(["register", "--executor-input", json.dumps(message)]) == 0
    artifact = json.loads(storage.read_bytes(f"{root}/executor_output.json"))["artifacts"]["registered"]["artifacts"][0]
    return artifact["metadata"]


def leave_record(config: RunConfig, fingerprint: str, decision: dict[str, Any]) -> str:
    """Leave what the task `record` would; return the run's folder."""
    return leave_run(config, line_of(config), f"run-{fingerprint[0]}", fingerprint, register=decision)


def aliases(config: RunConfig) -> dict[str, list[str]]:
    """The aliases of each version of the line's model."""
    place = {"project": PROJECT, "location": REGION}
    (model,) = aiplatform.Model.list(filter=f'display_name="{config.run.name}"', **place)
    versions = aiplatform.models.ModelRegistry(model, **place).list_versions()
    return {version.version_id: sorted(version.version_aliases) for version in versions}


def test_the_alias_follows_the_gate(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = register(config, A, monkeypatch, 70)
    assert (first["verdict"], aliases(config)) == ("production", {"1": ["default", "latest", "production"]})
    model = aiplatform.Model(first["resourceName"])
    assert model.uri == f"{line_of(config)}/export/{A}/triton"
    spec = model.container_spec
    assert (spec.image_uri, spec.predict_route, spec.health_route) == (SERVING, "/predict", "/health")
    assert [port.container_port for port in spec.ports] == [8080]
    # The version that is there is not uploaded again, and nothing is compared with itself.
    assert register(config, A, monkeypatch, 70)["resourceName"] == first["resourceName"]
    assert register(config, B, monkeypatch, 1)["verdict"] == "kept out"
    assert aliases(config) == {"1": ["default", "production"], "2": ["latest"]}
    assert register(config, C, monkeypatch, 0)["verdict"] == "production"
    assert aliases(config) == {"1": [], "2": [], "3": ["default", "latest", "production"]}
    # By a later run of the old configuration: it is the version 1, and was decided on.
    again = register(config, A, monkeypatch, 70)
    assert (again["verdict"], again["resourceName"]) == ("kept out", first["resourceName"])
    assert aliases(config)["3"] == ["default", "latest", "production"]


def test_promote_moves_the_alias_and_keeps_the_reason(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = register(config, A, monkeypatch, 70)
    good, model = leave_record(config, A, first), first["resourceName"].partition("@")[0]
    bad = leave_record(config, B, register(config, B, monkeypatch, 1))
    for run, version in ((bad, "2"), (good, "1")):
        assert promote(run, f"version {version}, please").endswith(f"@{version}")
        assert "production" in aliases(config)[version]
        document = json.loads(storage.read_bytes(storage.join(line_of(config), "production.json")))
        assert (document["run"], document["why"]) == (run.rpartition("/")[2], f"version {version}, please")
    refused = leave_record(config, C, register(config, C, monkeypatch, 0, device=""))
    with pytest.raises(ConfigError, match="is unproven: not run on a GPU"):
        promote(refused, "")
    allowed = config.model_copy(update={"export": config.export.model_copy(update={"allow_unproven": True})})
    refused = leave_record(allowed, C, {"verdict": "refused"})
    with pytest.raises(ConfigError, match="run run-c has no version in the model registry"):
        promote(refused, "")
    lost = leave_record(config, A, {"resourceName": f"{model}@9"})
    with pytest.raises(ConfigError, match="the model registry has no projects/"):
        promote(lost, "")
    assert "production" in aliases(config)["1"]
