"""Resolution of the configuration, and what a user reads when it is wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

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
    assert set(sections) == {"run", "sharding", "resources", "cloud", "dataflow"}


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
        ({"train": {"schedule": "linear"}}, "train.schedule = 'linear'", "correct train.schedule"),
        ({"train": {"nesterov": True}}, "train", "correct train"),
        ({"train": {"ema_decay": 1}}, "train.ema_decay = 1", "correct train.ema_decay"),
        ({"train": {"compile": "on", "activation_checkpointing": "whole"}}, "train", "correct train"),
        ({"task": {"name": "text_clasification"}}, "task.name = 'text_clas", "did you mean text_classification?"),
        ({"task": {"name": "poetry"}}, "task.name = 'poetry'", "choose one of them (docs/tasks.md)"),
        (
            {"sharding": {"tokenizer": {}, "fields": {"text": {"column": "a", "kind": "class"}}}},
            "sharding.tokenizer reads the field 'text', which is of kind class",
            "set sharding.fields.text.kind=text, or unset sharding.tokenizer",
        ),
        (
            {"sharding": {"tokenizer": {}, "fields": {"message": {"column": "a", "kind": "text"}}}},
            "has none of that name: its field of kind text is 'message'",
            (
                "name the field text instead of message (task text_classification reads the field text); for a task "
                "of your own, set sharding.tokenizer.field=message"
            ),
        ),
        (
            {"sharding": {"tokenizer": {}}},
            "sharding.fields has no field of kind text",
            "map a column to it: sharding.fields: {text: {column: ..., kind: text}}; or unset sharding.tokenizer",
        ),
        ({"resources": {"max_cost_usd": 5}}, "resources", "correct resources"),
    ],
)
def test_a_wrong_value_says_what_was_given_and_what_to_do(values: dict[str, object], given: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values, where="c.yaml")
    assert given in caught.value.given
    assert caught.value.todo == todo
    assert caught.value.exit_code == 2
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("train.epochs=true", "a whole number"),
        ("train.epochs=0", "a whole number of at least 1"),
        ("train.learning_rate=.inf", "a finite number"),
        ("train.learning_rate=0", "a number greater than 0"),
        ("train.learning_rate=fast", "a number"),
        ("train.warmup_fraction=1", "a number less than 1"),
        ("data.num_workers=-1", "a whole number of at least 0 or auto"),
        ("data.num_workers=true", "a whole number or auto"),
        ("data.mean=[0.5, 0.5, 127]", "a number of at most 1"),
        ("data.mean=[0.5]", "a list of at least 3 values"),
        ("data.mean=[0.5, 0.5, 0.5, 0.5]", "a list of at most 3 values"),
        ("data.horizontal_flip=perhaps", "true or false"),
        ("data.crop=left", "one of center, random_resized"),
        ("sharding.uri_column=''", "text that is not empty"),
        ("run.name=My Line", "Name of the line: lower-case letters, digits, '-' and '_'."),
        ("model.arguments=3", "a mapping of keys"),
        ("resources.beam_options=x", "a list"),
        (
            "sharding.fields.mask={column: a, kind: picture}",
            "one of image, text, class, classes, number, bytes, json",
        ),
        (
            "sharding.fields.mask={column: a, kind: text, name: b}",
            "sharding.fields.mask: column, kind, place",
        ),
    ],
)
def test_what_is_allowed_is_said_in_plain_words(tmp_path: Path, override: str, allowed: str) -> None:
    (tmp_path / "c.yaml").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml", [override])
    assert caught.value.allowed == allowed
    assert caught.value.given.startswith(f"override {override!r}: ")


def float_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from float_fields(field.annotation, f"{prefix}{name}.")
        elif field.annotation is float:
            yield f"{prefix}{name}"


def test_true_is_a_number_in_no_field(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("")
    names = list(float_fields(RunConfig))
    assert {"train.weight_decay", "profile.window_s"} <= set(names)
    for name in names:
        with pytest.raises(ConfigError) as caught:
            load_config(tmp_path / "c.yaml", [f"{name}=true"])
        assert caught.value.allowed.startswith("a number") and f"{name} = true" in caught.value.given
    # In quotes too.
    assert load_config(tmp_path / "c.yaml", ["train.learning_rate='1e-3'"]).train.learning_rate == 0.001


def test_the_override_is_blamed_for_what_it_set_only(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train: {epochs: 0}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: train\.epochs = 0"):
        load_config(path, ["train.learning_rate=0.1"])
    path.write_text("")
    with pytest.raises(ConfigError, match=r"override 'train\.learnin_rate=1': unknown key train\.learnin_rate"):
        load_config(path, ["train.epochs=1", "train.learnin_rate=1"])
    with pytest.raises(ConfigError, match=r"c\.yaml with sharding\.splits\.train=0\.5: sharding\.splits"):
        load_config(path, ["sharding.splits.train=0.5"])


def test_text_that_yaml_reads_as_a_number_is_to_be_quoted(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml", ["sharding.source=2024"])
    assert caught.value.allowed == "text"
    assert caught.value.todo == """quote it: source: "2024" in a file, 'sharding.source="2024"' as an override"""
    assert load_config(tmp_path / "c.yaml", ['sharding.source="2024"']).sharding.source == "2024"


def test_an_empty_section_means_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train:\n  # epochs: 3\nmodel:\n  arguments:\nsharding:\n  splits:\n")
    assert load_config(tmp_path / "c.yaml") == RunConfig()


@pytest.mark.parametrize("content", ["train: {epochs: 1, epochs: 2}", "train:\n  epochs: 1\nrun:\ntrain:\n"])
def test_a_duplicate_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(ConfigError, match="is there twice"):
        load_config(tmp_path / "c.yaml")


def test_a_merged_key_may_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: &t {epochs: 2}\nmodel: {arguments: {<<: *t, epochs: 3}}\n")
    assert load_config(tmp_path / "c.yaml").model.arguments == {"epochs": 3}


def test_json_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="a mapping of keys"):
        parse_config([], where="--config-json")  # type: ignore[arg-type]


@pytest.mark.parametrize("override", ["epochs=3", "train.epochs", "train.epochs={"])
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


@pytest.mark.parametrize("data", [{"cache_dir": "x"}, {"cache_bytes": 1}])
def test_a_cache_needs_a_place_and_a_size(data: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="cache_dir and cache_bytes are set together"):
        parse_config({"data": data}, where="test")
    for wrong in ({"memory_bytes": 1023}, {"cache_bytes": -1, "cache_dir": "x"}):
        with pytest.raises(ConfigError, match="of at least"):
            parse_config({"data": wrong}, where="test")


@pytest.mark.parametrize(("text", "value"), [("off", "off"), ("on", "on"), ("true", "on")])
def test_a_bare_on_or_off_is_a_word_where_words_are_meant(text: str, value: str) -> None:
    values: dict[str, object] = {}
    apply_override(values, f"train.compile={text}")
    assert parse_config(values, where="test").train.compile == value


@pytest.mark.parametrize("content", ["", "profile: off", "profile: 'off'", "profile: {window_s: 0.3}"])
def test_profile_off_is_one_word_in_a_file_and_as_an_override(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    for word in ("off", "'off'", "false"):
        assert load_config(path, [f"profile={word}"]).profile.method == "off"
    # Over it, a key of the section counts.
    assert load_config(path, ["profile=off", "profile.method=grid"]).profile.method == "grid"
    found = load_config(path, ["profile.budget_s=7"]).profile
    assert (found.budget_s, found.method) == (7, "off" if "off" in content else "sweep")


def test_profile_on_is_no_word() -> None:
    values: dict[str, object] = {}
    apply_override(values, "profile=on")
    with pytest.raises(ConfigError, match="profile = 'on'"):
        parse_config(values, where="test")
    with pytest.raises(ConfigError, match="override 'train=off'"):
        apply_override(values, "train=off")
