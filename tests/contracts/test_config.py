"""Resolution of the configuration, and what a user reads when it is wrong."""

from pathlib import Path

import pytest
import yaml

from contracts.config import STAGES, RunConfig
from contracts.config.load import load_config, parse_config, stage_config, to_yaml
from contracts.errors import EXIT_USER_ERROR, ConfigError

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs/digits.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text("")
    return tmp_path / "c.yaml"


def test_overrides_win_over_yaml_and_yaml_over_defaults(path: Path) -> None:
    path.write_text("train: {epochs: 3, learning_rate: 0.5}\n")
    config = load_config(path, ["train.epochs=7", "data.mean=[0.1, 0.2, 0.3]", "run.name=other"])
    assert (config.train.epochs, config.train.learning_rate) == (7, 0.5)
    assert config.train.weight_decay == RunConfig().train.weight_decay
    assert config.data.mean == [0.1, 0.2, 0.3]
    assert config.run.name == "other"


def test_the_resolved_configuration_survives_yaml_and_json() -> None:
    config = load_config(DIGITS, ["model.arguments.hidden_sizes=[8, 16]"])
    assert parse_config(yaml.safe_load(to_yaml(config)), where="again") == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_a_stage_gets_the_keys_that_it_reads() -> None:
    config = load_config(DIGITS, ["resources.max_cost_usd=5", "resources.price_usd_per_h=1", "cloud.region=us-east1"])
    sent = {stage: stage_config(config, stage) for stage in STAGES}
    assert set(sent["shard"]) == {"run", "sharding", "resources", "cloud", "dataflow"}
    assert "max_cost_usd" in sent["train"]["resources"] and "max_cost_usd" not in sent["shard"]["resources"]
    assert "cloud" not in sent["train"] and set(sent["train"]["export"]) == {"precision"}
    for values in sent.values():
        parse_config(values, where="stage")
    on_vertex = load_config(DIGITS, ["resources.max_cost_usd=5", "resources.machine.type=g2-standard-12"])
    for stage in STAGES:
        parse_config(stage_config(on_vertex, stage), where="stage")


# A mistake in a file or an override, and words of the error: what was given, what is allowed, what to do.
MISTAKES = [
    ("data.num_worker=1", "unknown key data.num_worker", "data: image_size, ", "did you mean data.num_workers?"),
    ("trian.epochs=1", "unknown key trian", "run, task, code", "did you mean train?"),
    ("sharding.fields.mask={kind: text}", "sharding.fields.mask.column", "Field required", "correct sharding.fields"),
    ("sharding.fields.mask={column: a, kind: picture}", "= 'picture'", "one of image, text, class", "correct"),
    ("sharding.fields.Mask={column: a, kind: text}", "sharding.fields.Mask", "keys of small letters", "correct"),
    ("sharding.fields=[image]", "sharding.fields = ['image']", "a mapping of keys", "correct sharding.fields"),
    ("train.epochs=0", "train.epochs = 0", "a whole number of at least 1", "correct train.epochs"),
    ("train.learning_rate=fast", "train.learning_rate = 'fast'", "a number", "correct"),
    ("train.weight_decay=1e_6", "train.weight_decay = '1e_6'", "a number", "correct train.weight_decay"),
    ("train.schedule=linear", "train.schedule = 'linear'", "one of cosine, constant", "correct train.schedule"),
    ("train=3", "override 'train=3'", "section.key=value, or profile=off", "write for example train.epochs=3"),
    ("train.epochs", "override 'train.epochs'", "section.key=value", "write for example"),
    ("train.epochs={", "expected the node content", "a YAML value", "quote the value"),
    ("run.name.more=1", "name holds a value", "", ""),
    ("data.mean=[0.5, 0.5, 127]", "data.mean.2 = 127", "a number of at most 1", "correct data.mean.2"),
    ("data.mean=[0.5]", "data.mean = [0.5]", "a list of at least 3 values", "correct data.mean"),
    ("sharding.source=2024", "sharding.source = 2024", "text", 'quote it: source: "2024" in a file'),
    ("sharding.splits.train=0.5", "sharding.splits", "sum to 0.7, not to 1", "correct sharding.splits"),
    ("sharding.tokenizer={}", "sharding.tokenizer reads a field of kind text", "of kind text", "map a column to it"),
    ("run.name=My Line", "run.name = 'My Line'", "Name of the line: lower-case letters", "correct run.name"),
    ("model.arguments=3", "model.arguments = 3", "a mapping of keys", "correct model.arguments"),
    ("parallel.slot_size=512", "512 is larger than train.global_batch_size", "at most the global", "set parallel"),
    ("task.name=text_clasification", "task.name = 'text_clas", "image_classification", "did you mean text_class"),
    ("resources.beam_runner=flink", "resources.beam_runner", "flink is refused", "correct"),
]


@pytest.mark.parametrize(("override", "given", "allowed", "todo"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_told_in_three_lines(path: Path, override: str, given: str, allowed: str, todo: str) -> None:
    path.write_text("run: {name: line}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    error = caught.value
    assert error.exit_code == EXIT_USER_ERROR and len(str(error).splitlines()) == 3
    assert "pydantic" not in str(error)
    assert given in error.given and allowed in error.allowed and todo in error.todo


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sharding: {resize: 50, verify: none}", "convert and resize need verify=decode"),
        ("sharding: {incremental: true, stratify: exact}", "stratify=none with increments"),
        ("train: {compile: on, activation_checkpointing: whole}", "one of them: torch.compile decides"),
        ("checkpoint: {every_steps: 1, every_s: 1}", "are both set"),
    ],
)
def test_values_that_exclude_each_other_are_refused(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_mistake_in_a_file_is_told_by_its_path_and_as_it_was_written(path: Path) -> None:
    path.write_text("train: {epochs: 007, learning_rate: true}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: train\.learning_rate = true"):
        load_config(path)
    path.write_text("train: {epochs: 0}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: train\.epochs = 0"):
        load_config(path, ["train.learning_rate=0.1"])
    path.write_text("")
    with pytest.raises(ConfigError, match=r"override 'train\.learnin_rate=1': unknown key train\.learnin_rate"):
        load_config(path, ["train.epochs=1", "train.learnin_rate=1"])
    with pytest.raises(ConfigError, match=r"c\.yaml with sharding\.splits\.train=0\.5: sharding\.splits"):
        load_config(path, ["sharding.splits.train=0.5"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "holds a list"),
        ("a: [", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
        ("train: {epochs: 1, epochs: 2}", "is there twice"),
        ("train:\n  epochs: 1\nrun:\ntrain:\n", "is there twice"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match=r"nothing\.yaml does not exist"):
        load_config(path.with_name("nothing.yaml"))


def test_what_yaml_makes_of_values_is_what_people_mean(path: Path) -> None:
    assert load_config(path, ["train.learning_rate='1e-3'"]).train.learning_rate == 0.001
    assert load_config(path, ['sharding.source="2024"']).sharding.source == "2024"
    for text, value in (("off", "off"), ("on", "on"), ("true", "on")):
        assert load_config(path, [f"train.compile={text}"]).train.compile == value
    path.write_text("train:\n  # epochs: 3\nmodel:\n  arguments:\nsharding:\n  splits:\n")
    assert load_config(path) == RunConfig()
    path.write_text("train: &t {epochs: 2}\nmodel: {arguments: {<<: *t, epochs: 3}}\n")
    assert load_config(path).model.arguments == {"epochs": 3}


@pytest.mark.parametrize("content", ["", "profile: off", "profile: 'off'", "profile: {num_workers: [1]}"])
def test_profile_off_is_one_word_in_a_file_and_as_an_override(path: Path, content: str) -> None:
    path.write_text(content)
    for word in ("off", "'off'", "false"):
        assert load_config(path, [f"profile={word}"]).profile.method == "off"
    # Over it, a key of the section counts.
    assert load_config(path, ["profile=off", "profile.method=sweep"]).profile.method == "sweep"
    found = load_config(path, ["profile.budget_s=7"]).profile
    assert (found.budget_s, found.method) == (7, "off" if "off" in content else "auto")
