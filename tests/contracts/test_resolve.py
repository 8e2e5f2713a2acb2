"""Resolution of the configuration, and what a user reads when it is wrong."""

from pathlib import Path

import pytest
import yaml

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.resolve import apply_override, load_config, parse_config, stage_config, to_yaml

DIGITS = Path(__file__).parents[2] / "configs/digits.yaml"


def test_overrides_win_over_yaml_and_yaml_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train: {epochs: 3, learning_rate: 0.5}\n")
    config = load_config(path, ["train.epochs=7", "data.mean=[0.1, 0.2, 0.3]", "run.name=other"])
    assert config.train.epochs == 7
    assert config.train.learning_rate == 0.5
    assert config.train.weight_decay == RunConfig().train.weight_decay
    assert config.data.mean == [0.1, 0.2, 0.3]
    assert config.run.name == "other"


def test_the_resolved_configuration_survives_yaml_and_json() -> None:
    config = load_config(DIGITS, ["model.arguments.hidden_sizes=[8, 16]"])
    assert parse_config(yaml.safe_load(to_yaml(config)), where="again") == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_a_stage_gets_its_sections_only() -> None:
    sections = stage_config(load_config(DIGITS), "shard")
    assert set(sections) == {"run", "sharding", "resources", "vertex"}


@pytest.mark.parametrize(
    ("values", "given", "todo"),
    [
        ({"data": {"num_worker": 1}}, "unknown key data.num_worker", "did you mean data.num_workers?"),
        ({"trian": {}}, "unknown key trian", "did you mean train?"),
        ({"data": {"num_workers": -1}}, "data.num_workers = -1", "correct data.num_workers"),
        ({"sharding": {"splits": {"train": 0.5}}}, "sharding.splits", "correct sharding.splits"),
        ({"export": {"opt_batch": 100}}, "export", "correct export"),
        ({"parallel": {"slot_size": 512}}, "configuration", "correct configuration"),
        ({"train": 3}, "train = 3", "correct train"),
    ],
)
def test_a_wrong_value_says_what_was_given_and_what_to_do(values: dict[str, object], given: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values, where="c.yaml")
    assert given in caught.value.given
    assert caught.value.todo == todo
    assert caught.value.exit_code == 2
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize("override", ["epochs=3", "train.epochs", "=3", "train.=3", "train.epochs={"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        apply_override({}, override)


def test_an_override_into_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds a value"):
        apply_override({"train": {"epochs": 3}}, "train.epochs.more=1")


@pytest.mark.parametrize("content", ["- a\n", "a: [", "\x00"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml does not exist"):
        load_config(tmp_path / "nothing.yaml")
