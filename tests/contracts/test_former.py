"""Keys of release 0.1.0 are read, each with a warning that names the key of today."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.fingerprint import shard_inputs
from contracts.resolve import load_config, parse_config, read_stage_config
from tests.pipelines.images import REGISTERED

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "tests/releases/0.1.0"
FORMER, TODAY = RELEASE / "vertex.yaml", ROOT / "configs/photos-h100-flex.yaml"
# The former keys of that file.
RENAMED = {key: f"cloud.{key}" for key in ("project", "region", "service_account", "labels", "kms_key", "images")}

# Every former key, by section.
ALL: dict[str, Any] = {
    "project": "p",
    "region": "r",
    "service_account": "a@b.com",
    "kms_key": "k",
    "labels": {"team": "vision"},
    "images": {"trainer": "t"},
    "network": "n",
    "subnetwork": "s",
    "public_ips": False,
    "dataflow": {"disk_gb": 99, "flexrs": True},
    "model": {"name": "m"},
}


def warnings_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("warning: vertex.")]


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "line.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_file_of_the_last_release_is_the_file_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    former = load_config(FORMER)
    assert former.cloud.service_account == "line@acme-vision.iam.gserviceaccount.com"
    # IAM takes no account of fewer than six letters: the example has another since.
    # The example names no images since, and uploads a model only where that is asked for.
    images = json.dumps(former.cloud.images.model_dump())
    given = [f"cloud.service_account={former.cloud.service_account}", f"cloud.images={images}"]
    assert former == load_config(TODAY, given)
    told = warnings_of(capsys.readouterr().err)
    assert told == [
        f"warning: vertex.{key} is {new} now; the former key goes in the next release" for key, new in RENAMED.items()
    ]


def test_every_former_key_has_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(written(tmp_path, {"vertex": ALL}))
    cloud, dataflow = config.cloud, config.dataflow
    assert (cloud.project, cloud.region, cloud.service_account, cloud.kms_key) == ("p", "r", "a@b.com", "k")
    assert cloud.labels == {"team": "vision"} and cloud.images.trainer == "t"
    assert (dataflow.network, dataflow.subnetwork, dataflow.public_ips) == ("n", "s", False)
    assert dataflow.disk_gb == 99 and dataflow.flexrs
    assert config.vertex.model.name == "m"
    assert len(warnings_of(capsys.readouterr().err)) == len(ALL) - 1


@pytest.mark.parametrize("name", ["vertex", "cloud"])
def test_overrides_win_by_either_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"vertex": "cloud", "cloud": "vertex"}[name]
    path = written(tmp_path, {other: {"project": "file", "region": "kept"}})
    given = [f"{name}.project=given", f"{name}.images.trainer=t"]
    cloud = load_config(path, given).cloud
    assert (cloud.project, cloud.region, cloud.images.trainer) == ("given", "kept", "t")
    capsys.readouterr()
    load_config(written(tmp_path, {}), given)
    assert len(warnings_of(capsys.readouterr().err)) == (2 if name == "vertex" else 0)


def test_a_former_section_as_an_override_leaves_the_network(tmp_path: Path) -> None:
    path = written(tmp_path, {"dataflow": {"public_ips": False, "disk_gb": 99}})
    dataflow = load_config(path, ["vertex.dataflow={flexrs: true}"]).dataflow
    assert dataflow.flexrs and not dataflow.public_ips and dataflow.disk_gb == 50
    assert load_config(path, ["vertex.dataflow.disk_gb=80"]).dataflow.disk_gb == 80
    assert load_config(written(tmp_path, {"dataflow": 3}), ["vertex.dataflow={flexrs: true}"]).dataflow.flexrs


@pytest.mark.parametrize(
    ("values", "overrides", "former", "new"),
    [
        ({"vertex": {"project": "a"}, "cloud": {"project": "b"}}, [], "vertex.project", "cloud.project"),
        (
            {"vertex": {"dataflow": {"disk_gb": 40}}, "dataflow": {"disk_gb": 50}},
            [],
            "vertex.dataflow",
            "dataflow",
        ),
        ({"vertex": {"images": {"file": "a"}}, "cloud": {"images": {}}}, [], "vertex.images", "cloud.images"),
        ({"vertex": {"network": "a"}, "dataflow": {"network": "b"}}, [], "vertex.network", "dataflow.network"),
        ({"vertex": {"labels": {"a": "1"}}, "cloud": {"labels": {"b": "2"}}}, [], "vertex.labels", "cloud.labels"),
        ({}, ["vertex.region=a", "cloud.region=b"], "vertex.region", "cloud.region"),
        ({}, ["cloud.images.trainer=a", "vertex.images={}"], "vertex.images", "cloud.images.trainer"),
    ],
)
def test_both_names_of_a_value_are_refused(
    tmp_path: Path, values: dict[str, Any], overrides: list[str], former: str, new: str
) -> None:
    path = written(tmp_path, values)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert f"{former} and {new} are both given" in caught.value.given
    assert caught.value.todo == f"remove {former}" and caught.value.exit_code == 2
    if not overrides:
        with pytest.raises(ValidationError, match="both given"):
            RunConfig.model_validate(values)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"vertex": {"project": 3}}, "cloud.project = 3"),
        ({"vertex": {"dataflow": {"disk_gb": 3}}}, "dataflow.disk_gb = 3"),
        ({"vertex": {"dataflow": 3}}, "dataflow = 3"),
        ({"vertex": {"project": "p"}, "cloud": 3}, "cloud = 3"),
        ({"vertex": {"project": "p", "regoin": "r"}}, "unknown key vertex.regoin"),
    ],
)
def test_what_is_wrong_is_named_by_its_key_of_today(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values, where="c.yaml")
    assert named in caught.value.given


def test_empty_former_sections_are_defaults(tmp_path: Path) -> None:
    empty = {"vertex": {"dataflow": None, "images": None, "labels": None, "network": "n"}, "dataflow": None}
    config = load_config(written(tmp_path, empty))
    assert config.dataflow.network == "n" and config.cloud == RunConfig().cloud


def test_the_error_of_a_former_override_names_that_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"override 'vertex.dataflow.disk_gb=3': dataflow.disk_gb = 3"):
        load_config(written(tmp_path, {}), ["vertex.dataflow.disk_gb=3"])


def test_documents_of_the_last_release_say_nothing_and_keep_their_fingerprints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (start,) = RELEASE.glob("line/runs/*/run-start.json")
    document = json.loads(start.read_text())["config"]
    assert "project" in document["vertex"] and "cloud" not in document
    config = parse_config(document, where="run-start.json")
    (shards,) = RELEASE.glob("line/shard/*/manifest.json")
    made_from = ShardManifest.parse(shards.read_bytes(), where=str(shards)).made_from
    assert shard_inputs(config, made_from["listing"]) == made_from
    (stage,) = start.parent.glob("shard.json")
    assert read_stage_config(None, None, stage.read_text()).sharding == config.sharding
    assert capsys.readouterr().err == ""


def test_a_command_warns_once_and_keeps_its_standard_output() -> None:
    command = [sys.executable, "-W", "error", "-m", "pipelines.cli", "plan", "-o", "json"]
    answers = [
        subprocess.run([*command, str(path), *REGISTERED], capture_output=True, text=True, cwd=ROOT, timeout=120)
        for path in (FORMER, TODAY)
    ]
    former, today = (json.loads(answer.stdout) for answer in answers)
    assert former == today
    assert len(warnings_of(answers[0].stderr)) == len(RENAMED) and warnings_of(answers[1].stderr) == []
