"""What a submission is refused for before anything is paid: each rule has a configuration that breaks it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from contracts.config import RunConfig
from contracts.config.load import apply_override, parse_config
from pipelines.cli import app
from pipelines.rules import find_problems, find_regions, find_warnings

DIGEST = "@sha256:" + "0123456789abcdef" * 4
VALID: dict[str, Any] = {
    "run": {"name": "flowers", "root": "gs://my-bucket/runs"},
    "sharding": {"source": "gs://my-bucket/raw"},
    "resources": {"machine": {"type": "g2-standard-12"}, "nodes": 2},
    "cloud": {
        "project": "my-project",
        "region": "us-central1",
        "images": {role: f"us-docker.pkg.dev/p/r/{role}{DIGEST}" for role in ("cpu", "gpu", "serving")},
    },
    "register": {"upload": True},
}
ACCOUNT = "cloud.service_account=a@my-project.iam.gserviceaccount.com"
KEY = "keyRings/r/cryptoKeys/k"
V100 = "{type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}"

# What breaks each rule -> what the problem says.
BREAKS: list[tuple[Sequence[str], str]] = [
    (["cloud.project=''"], "cloud.project is not set"),
    (["cloud.project=My Project"], "cloud.project = My Project"),
    (["run.root=/tmp/runs"], "run.root = /tmp/runs | gs://BUCKET/FOLDER: no machine of the cloud sees"),
    (["run.name=9_flowers"], "run.name = 9_flowers"),
    (["cloud.labels={Team: vision}"], "cloud.labels = Team: vision"),
    (["resources.env={RANK: '0'}"], "resources.env = RANK"),
    (["cloud.service_account=me"], "cloud.service_account = me"),
    (
        ["vertex.psc_attachment=projects/p/regions/us-east1/networkAttachments/a"],
        "vertex.psc_attachment is in us-east1",
    ),
    (["vertex.tensorboard=projects/12/locations/us-central1/tensorboards/34"], "without cloud.service_account"),
    (["vertex.tensorboard=projects/1/locations/us-east1/tensorboards/3", ACCOUNT], "jobs run in us-central1"),
    ([f"cloud.kms_key=projects/p/locations/us-central1/{KEY}", "resources.regions=[us-east1]"], "jobs run in us-east1"),
    (["resources.regions=[us-east4, us-east4]"], "us-east4 is there twice"),
    (["resources.strategy=FLEX_START", "resources.timeout_hours=200"], "with FLEX_START | up to 168"),
    (["resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_L4}"], "NVIDIA_L4 comes with g2-standard-4"),
    (["resources.machine.type=a3-highgpu-1g", "resources.strategy=STANDARD"], "a3-highgpu-1g with 1 x"),
    ([f"resources.machine={V100}"], "resources.machine: n1-standard-8 with 1 x NVIDIA_TESLA_V100, which exports"),
    (["resources.ranks=2"], "resources.ranks = 2 on g2-standard-12"),
    (["train.global_batch_size=1"], "train.global_batch_size = 1 on 2 ranks"),
    (["train.early_stopping={}", "sharding.splits={train: 1, validation: 0, test: 0}"], "splits.validation = 0"),
    (["sharding.splits={train: 0.8, validation: 0.2, test: 0}"], "sharding.splits.test = 0"),
    (["code.path=/nonexistent", "model.architecture='net:build'"], "code.path"),
    (["cloud.images.serving=''"], "cloud.images.serving is not set | for a model that is registered"),
    (["schedule.cron=0 6 * *"], "schedule.cron = 0 6 * *: it has 4 fields"),
    (["schedule.cron=0 6 31 2 *"], "Bad day-of-month"),
    (["schedule.cron=0 6 * * 1", "schedule.time_zone=Mars/Olympus"], "schedule.time_zone = Mars/Olympus"),
]


def config(*overrides: str) -> RunConfig:
    values = json.loads(json.dumps(VALID))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where="test", overrides=overrides)


@pytest.fixture(autouse=True)
def _no_record_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("overrides", "expected"), BREAKS)
def test_a_rule_is_broken(overrides: Sequence[str], expected: str) -> None:
    problems = find_problems(config(*overrides))
    texts = [f"{problem.given} | {problem.allowed} | {problem.todo}" for problem in problems]
    assert any(expected in text for text in texts), texts
    assert len(problems) <= 2, texts


def test_what_a_command_says_beside_the_configuration() -> None:
    for run_id in ("Tiny", "1st", "a_b", "a" * 129):
        given = [problem.given for problem in find_problems(config(), run_id=run_id, scheduled=True)]
        assert given == [f"--run-id = {run_id}", "schedule.cron is not set"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["cloud.images.serving=''", "register.upload=false"],
        ["schedule.cron='*/15 0-23/2 1,15 JAN-mar mon-FRI'", "schedule.time_zone=Europe/Berlin"],
        ["sharding.source=gs://b-1/rows.CSV", "sharding.splits={train: 1, validation: 0, test: 0}"],
        [f"cloud.kms_key=projects/p/locations/us-central1/{KEY}", "cloud.labels={team: vision_2, a: ''}"],
        ["vertex.tensorboard=projects/12/locations/us-central1/tensorboards/34", ACCOUNT, "vertex.mail=[a.b@c.de]"],
    ],
)
def test_a_valid_configuration_has_no_problem(overrides: list[str]) -> None:
    assert find_problems(config(*overrides)) == ()


def test_time_zones_are_known_without_those_of_the_system() -> None:
    # In a slim image the zones are those of the package tzdata.
    command = "import zoneinfo; zoneinfo.reset_tzpath([]); zoneinfo.ZoneInfo('Europe/Berlin')"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_what_costs_money_unawares_is_warned_of() -> None:
    tried = config("resources.regions=[us-east1]", "resources.strategy=FLEX_START")
    (elsewhere,) = find_warnings(tried)
    assert find_regions(tried) == ["us-central1", "us-east1"]
    assert "only `submit --wait` tries us-east1" in elsewhere
    (late,) = find_warnings(config("resources.max_hours=200"))
    assert "beyond resources.timeout_hours = 168" in late
    (unproven,) = find_warnings(config("register.upload=true", "resources.machine={type: n1-standard-4}"))
    assert "register.upload on n1-standard-4: without a GPU the export stays unproven" in unproven
    assert not list(find_warnings(config()))


def test_bad_input_ends_each_command_with_2_before_anything_is_created(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(VALID))
    mistakes = (
        ("resources.regions=[us-central1]", "us-central1 is there twice"),
        ("resources.machine.type=n1-standard-5", "n1-standard-5 is no machine type"),
        ("export.runtime=tensorrt_rtx", "whose engine Triton does not load"),
    )
    commands = (["compile"], ["submit"], ["schedule", "create"])
    for (change, expected), command in zip(mistakes, commands, strict=True):
        answer = CliRunner().invoke(app, [*command, "line.yaml", change])
        assert answer.exit_code == 2 and expected in answer.output, answer.output
        assert "allowed: " in answer.output and "to do: " in answer.output
    assert [path.name for path in tmp_path.iterdir()] == ["line.yaml"]
