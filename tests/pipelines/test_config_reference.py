import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from contracts.config.load import parse_config
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.config_reference import find_key, list_keys, to_markdown, to_schema

ROOT = Path(__file__).parents[2]


def test_the_documents_are_those_of_the_models() -> None:
    for name, content in (("configuration.md", to_markdown()), ("configuration.schema.json", to_schema())):
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == content, "a wanted change? python -m pipelines.config_reference"


def test_every_key_has_a_meaning_and_a_default_or_must_be_given() -> None:
    keys = list_keys()
    assert len(keys) > 200
    assert not [key.name for key in keys if not key.meaning]
    fields = {"sharding.fields.NAME.column", "sharding.fields.NAME.kind"}
    assert {key.name for key in keys if not key.default} == fields


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("run.seed", ("train", "export")),
        ("sharding.seed", ("shard", "profile", "train", "export")),
        ("sharding.target_shard_bytes", ("shard", "profile", "train", "export")),
        ("train.learning_rate", ("train", "export")),
        ("train.global_batch_size", ("profile", "train", "export")),
        ("model.architecture", ("profile", "train", "export")),
        ("model.weights", ("train", "export")),
        ("profile.budget_s", ("profile",)),
        ("export.precision", ("export",)),
        ("resources.strategy", ()),
        ("resources.machine.boot_disk_gb", ()),
        ("cloud.labels", ()),
        ("data.cache_dir", ("profile",)),
        ("checkpoint.every_steps", ()),
        ("inspect.samples", ()),
    ],
)
def test_what_a_change_makes_anew(name: str, stages: tuple[str, ...]) -> None:
    assert find_key(name).invalidates == stages


def test_a_key_is_described_and_one_that_is_none_is_refused() -> None:
    said = CliRunner().invoke(app, ["config", "show", "--describe", "resources.timeout_hours"]).output
    assert "type: number, above 0 up to 720" in said and "unit: h" in said and "default: 168" in said
    section = CliRunner().invoke(app, ["config", "show", "--describe", "checkpoint"]).output
    assert "checkpoint: When checkpoints are written" in section and "checkpoint.keep_last  (default: 2)" in section
    nested = CliRunner().invoke(app, ["config", "show", "--describe", "cloud.images"]).output
    assert nested.startswith("cloud.images: a section\n  cloud.images.file")
    assert CliRunner().invoke(app, ["config", "show"]).exit_code == 2
    unknown = CliRunner().invoke(app, ["config", "show", "--describe", "train.epoch"])
    assert unknown.exit_code == 2 and "did you mean train.epochs" in unknown.stderr
    with pytest.raises(ConfigError, match=r"did you mean train\.learning_rate"):
        find_key("train.lerning_rate")


def test_the_schema_knows_every_key_of_the_configurations() -> None:
    schema = json.loads(to_schema())
    # What parse_config takes besides.
    assert all({"type": "null"} in section["anyOf"] for section in schema["properties"].values())
    assert {"enum": ["off", False]} in schema["properties"]["profile"]["anyOf"]
    assert parse_config({"profile": "off", "train": None}, where="").profile.method == "off"

    def check(value: object, where: dict[str, object], path: str) -> None:
        kinds = [where, *where.get("anyOf", [])]  # type: ignore[misc]
        section = next((kind["$ref"] for kind in kinds if "$ref" in kind), None)
        if section is None or not isinstance(value, dict):
            return
        definition = schema["$defs"][str(section).rpartition("/")[2]]
        assert definition["additionalProperties"] is False
        for key, inner in value.items():
            assert key in definition["properties"], f"{path}.{key}"
            check(inner, definition["properties"][key], f"{path}.{key}")

    for path in sorted((ROOT / "configs").glob("*.yaml")):
        for name, section in yaml.safe_load(path.read_text()).items():
            check(section, schema["properties"][name], name)
