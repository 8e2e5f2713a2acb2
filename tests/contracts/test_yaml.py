"""YAML as people write it: numbers are those of YAML 1.2, all else is the word that is there, and messages quote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.config import RunConfig
from contracts.config.load import load_config, parse_config, to_yaml
from contracts.errors import ConfigError

# What stands there, and its value.
WRITTEN: list[tuple[str, Any]] = [
    ("1e-6", 1e-6),
    ("+.5e3", 500.0),
    ("007", 7),
    ("0o17", 15),
    ("0x1F", 31),
    ("1_000", 1000),
    ("12:30", "12:30"),
    ("2026-12-01", "2026-12-01"),
    ("on", "on"),
    ("No", "No"),
    ("'1e-6'", "1e-6"),
    ("TRUE", True),
    ("~", None),
]


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(text: str, *overrides: str) -> RunConfig:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return load


@pytest.mark.parametrize(("text", "value"), WRITTEN)
def test_plain_words_are_read_as_yaml_1_2_has_them(load: Any, text: str, value: object) -> None:
    of_file = load(f"model: {{arguments: {{a: {text}}}}}")
    of_override = load("", f"model.arguments.a={text}")
    for found in (of_file.model.arguments["a"], of_override.model.arguments["a"]):
        assert found == value and type(found) is type(value)
    # And are the same again in what is printed.
    again = parse_config(yaml.safe_load(to_yaml(of_file)), where="again") if isinstance(value, str) else of_file
    assert again == of_file == load(to_yaml(of_file))


def test_keys_are_the_words_that_stand_there(load: Any) -> None:
    written = "{no: 3.0, 007: 1e-1, 12:30: 2, 2026-12-01: 1, true: 4, ~: 5}"
    expected = {"no": 3.0, "007": 0.1, "12:30": 2.0, "2026-12-01": 1.0, "true": 4.0, "~": 5.0}
    assert load(f"train: {{learning_rates: {written}}}").train.learning_rates == expected
    assert load("", f"train.learning_rates={written}").train.learning_rates == expected
    with pytest.raises(ConfigError, match="key 1 is there twice"):
        load("train: {learning_rates: {1: 3.0, 1: 4.0}}")


@pytest.mark.parametrize("text", ["007", "1e-6"])
def test_messages_quote_what_was_written(load: Any, text: str) -> None:
    for give in (lambda: load(f"sharding:\n  source: {text}\n"), lambda: load("", f"sharding.source={text}")):
        with pytest.raises(ConfigError) as caught:
            give()
        assert caught.value.given.endswith(f"sharding.source = {text}")
        quoted = f'"{text}"'
        assert caught.value.todo == (f"quote it: source: {quoted} in a file, 'sharding.source={quoted}' as an override")
    with pytest.raises(ConfigError, match=r"data\.mean\.1 = 0o17"):
        load("data: {mean: [0.1, 0o17, 0.1]}")
    with pytest.raises(ConfigError, match=r"data\.num_workers = 'on'"):
        load("data: {num_workers: 3}", "data.num_workers=on")
    # Behind an alias it is not looked for.
    with pytest.raises(ConfigError, match=r"sharding\.source = 7"):
        load("model: {arguments: &a {source: 007}}\nsharding: {<<: *a}")
