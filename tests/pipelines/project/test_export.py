import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.resolve import load_config
from pipelines.cli import app
from pipelines.project.declaration import declare
from pipelines.project.gcloud import to_gcloud
from pipelines.project.terraform import to_terraform
from tests.pipelines.project.conftest import configure

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "terraform_schema.json").read_text())["resources"]


def find_faults(whole: dict[str, Any]) -> list[str]:
    """Return what the provider's schema refuses, and references to resources that are not there."""
    faults = []
    for kind, resources in whole["resource"].items():
        for name, content in resources.items():
            faults += _faults(f"{kind}.{name}", content, SCHEMA[kind])
    text = json.dumps(whole)
    for part in text.split("${google_")[1:]:
        kind, name = ("google_" + part).split("}")[0].split(".")[:2]
        if name not in whole["resource"].get(kind, {}):
            faults.append(f"{kind}.{name} is not declared")
    for resources in whole["resource"].values():
        for content in resources.values():
            for reference in content.get("depends_on", []):
                kind, name = reference.split(".")
                if name not in whole["resource"].get(kind, {}):
                    faults.append(f"{reference} is not declared")
    return faults


def _faults(where: str, content: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    given = {key: value for key, value in content.items() if key not in ("//", "depends_on")}
    faults = [f"{where}.{key} is unknown" for key in given if key not in schema]
    faults += [f"{where}.{key} is missing" for key, its in schema.items() if its["required"] and key not in given]
    for key, value in given.items():
        block = schema.get(key, {}).get("block")
        for item in value if block and isinstance(value, list) else []:
            faults += _faults(f"{where}.{key}", item, block)
    return faults


def test_terraform_is_of_the_providers_schema(config: RunConfig, whole: RunConfig) -> None:
    for each in (config, whole):
        assert find_faults(json.loads(to_terraform(declare(each)))) == []
    kinds = json.loads(to_terraform(declare(whole)))["resource"]
    assert len(kinds) >= 12
    assert set(kinds) == set(SCHEMA)


@pytest.mark.slow  # `terraform init` looks for the provider, by default on the network.
def test_terraform_validates_it(whole: RunConfig, tmp_path: Path) -> None:
    """The provider comes from where terraform's own settings say: a mirror, a cache, the registry."""
    terraform = shutil.which("terraform")
    if terraform is None:
        pytest.skip("no terraform here")
    (tmp_path / "main.tf.json").write_text(to_terraform(declare(whole)))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(terraform), f"-chdir={tmp_path}", *words, "-no-color"]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    found = run("init", "-backend=false", "-input=false")
    if found.returncode:
        pytest.skip(f"terraform finds no provider hashicorp/google: {' '.join(found.stderr.split())[:300]}")
    checked = run("validate")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tree: tree["google_storage_bucket"]["acme_vision_line"].update(loction="US"), "loction is unknown"),
        (lambda tree: tree["google_storage_bucket"]["acme_vision_line"].pop("location"), "location is missing"),
        (
            lambda tree: tree["google_storage_bucket"]["acme_vision_line"]["lifecycle_rule"][0]["condition"][0].update(
                agee=1
            ),
            "condition.agee is unknown",
        ),
        (lambda tree: tree["google_compute_network"].clear(), "google_compute_network.line is not declared"),
    ],
)
def test_the_check_finds_faults(whole: RunConfig, change: Any, fault: str) -> None:
    tree = json.loads(to_terraform(declare(whole)))
    change(tree["resource"])
    assert any(fault in found for found in find_faults(tree))


def test_nothing_is_lost_in_either_form(whole: RunConfig) -> None:
    declaration = declare(whole)
    tree = json.loads(to_terraform(declaration))["resource"]
    num_grants = sum(len(resources) for kind, resources in tree.items() if kind.endswith("_iam_member"))
    assert num_grants == len(declaration.grants)
    script = to_gcloud(declaration)
    assert script.count("add-iam-policy-binding") == len(declaration.grants)
    for resource in declaration.resources:
        assert resource.reason in script


def test_the_script_is_one_of_bash(whole: RunConfig) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n"], input=to_gcloud(declare(whole)), text=True, check=True, timeout=60)


def test_names_cannot_leave_their_word() -> None:
    with pytest.raises(ConfigError, match="bucket = bucket;rm"):
        to_gcloud(declare(configure("run.root=gs://bucket;rm/lines")))


def test_the_command(tmp_path: Path) -> None:
    import yaml

    from tests.pipelines.project.conftest import DOCUMENT

    path = tmp_path / "line.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    runner = CliRunner()
    found = runner.invoke(app, ["project", "export", str(path), "--terraform"])
    assert found.exit_code == 0
    assert "google_storage_bucket" in json.loads(found.stdout)["resource"]
    assert runner.invoke(app, ["project", "export", str(path), "--gcloud"]).stdout.startswith("#!")
    for form in ([], ["--terraform", "--gcloud"]):
        refused = runner.invoke(app, ["project", "export", str(path), *form])
        assert refused.exit_code == 2
        assert "--terraform or --gcloud" in refused.stderr


@pytest.mark.parametrize("example", ["digits-vertex", "photos-a100-spot", "photos-h100-flex"])
def test_the_examples_can_be_made(example: str) -> None:
    config = load_config(Path(f"configs/{example}.yaml"))
    assert config.cloud.service_account in to_gcloud(declare(config))
