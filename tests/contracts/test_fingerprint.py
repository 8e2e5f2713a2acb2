"""What moves a fingerprint, and what must not."""

import json

import pytest

from contracts.config import RunConfig
from contracts.config.load import apply_override, parse_config
from contracts.fingerprint import combine, fingerprint, profile_inputs, shard_inputs, train_inputs


def with_override(text: str) -> RunConfig:
    values: dict[str, object] = {}
    apply_override(values, text)
    return parse_config(values, where="test")


# Of the defaults and "listing".
BEFORE = "f0fb67daadd8d667"


def keys(config: RunConfig) -> dict[str, str]:
    return {
        "shard": combine(shard_inputs(config, "listing")),
        "profile": combine(profile_inputs(config, shards="s", hardware={"cores": "2"}, torch_version="2")),
        "train": combine(train_inputs(config, shards="s")),
    }


@pytest.mark.parametrize(
    ("override", "moved"),
    [
        ("task.arguments.loss=focal", {"profile", "train"}),
        ("train.learning_rate=0.5", {"train"}),
        # `profile.method: auto` ends early for a short training.
        ("train.epochs=3", {"profile", "train"}),
        ("train.max_steps=7", {"profile", "train"}),
        ("train.schedule=constant", {"train"}),
        ("train.label_smoothing=0.1", {"train"}),
        ("train.momentum=0.5", {"train"}),
        ("train.optimizer=sgd", {"profile", "train"}),
        ("train.clip_grad_norm=1", {"profile", "train"}),
        ("train.ema_decay=0.9", {"profile", "train"}),
        ("train.precision=bf16", {"profile", "train"}),
        ("train.channels_last=true", {"profile", "train"}),
        ("train.compile=on", {"profile", "train"}),
        ("train.activation_checkpointing=whole", {"profile", "train"}),
        ("train.precision=auto", {"profile", "train"}),
        ("train.activation_checkpointing=auto", {"profile", "train"}),
        ("resources.max_hours=1", set()),
        ("resources.price_usd_per_h=1", set()),
        ("train.global_batch_size=32", {"profile", "train"}),
        ("sharding.format=tfrecord", {"shard"}),
        ("sharding.target_shard_bytes=4096", {"shard"}),
        ("sharding.source=elsewhere", set()),
        ("sharding.max_rejected_fraction=0.5", set()),
        ("sharding.incremental=true", set()),
        ("sharding.duplicates=fail", set()),
        ("sharding.duplicates=off", set()),
        ("sharding.verify=none", {"shard"}),
        ("sharding.resize=256", {"shard"}),
        ("sharding.convert=[cmyk]", {"shard"}),
        ("sharding.group_by=x", {"shard"}),
        ("sharding.seed=1", {"shard"}),
        ("sharding.max_pixels=1000", {"shard"}),
        ("run.seed=1", {"train"}),
        ("run.root=elsewhere", set()),
        ("run.name=other", set()),
        ("data.num_workers=1", {"profile"}),
        ("data.prefetch_factor=2", {"profile"}),
        ("data.cache_bytes=1048576", {"profile"}),
        ("data.order=blocks", {"profile", "train"}),
        ("data.image_size=64", {"profile", "train"}),
        ("data.augment.color_jitter=[0, 0, 0, 0.1]", {"profile", "train"}),
        ("data.on_bad_sample=replace", set()),
        ("resources.ranks=3", {"profile"}),
        ("resources.nodes=2", {"profile"}),
        ("resources.threads=2", {"profile"}),
        ("resources.max_attempts=9", set()),
        ("parallel.slot_size=16", {"profile", "train"}),
        ("parallel.sync_batch_norm=true", {"profile", "train"}),
        ("parallel.strategy=fsdp", {"profile"}),
        ("checkpoint.keep_last=5", set()),
        ("profile.budget_s=120", {"profile"}),
        ("profile.method=sweep", {"profile"}),
        ("export.precision=fp32", set()),
        ("model.architecture=vit", {"profile", "train"}),
    ],
)
def test_a_field_moves_the_stages_whose_result_it_changes(override: str, moved: set[str]) -> None:
    before, after = keys(RunConfig()), keys(with_override(override))
    assert {stage for stage in before if before[stage] != after[stage]} == moved


def test_the_length_of_the_training_does_not_move_a_sweep() -> None:
    sweep = {"profile": {"method": "sweep"}}
    longer = keys(RunConfig.model_validate({**sweep, "train": {"epochs": 3, "max_steps": 7}}))
    assert keys(RunConfig.model_validate(sweep))["profile"] == longer["profile"]


def test_the_fields_of_samples_move_shards_by_their_order_too() -> None:
    images = {name: {"column": name, "kind": "image"} for name in ("photo", "mask")}
    sections = [
        {},
        {"fields": images},
        {"fields": {name: images[name] for name in ("mask", "photo")}},
        {"fields": {**images, "label": {"column": "x", "kind": "class"}}},
    ]
    found = [keys(parse_config({"sharding": section}, where="test"))["shard"] for section in sections]
    assert len(set(found)) == len(found)
    # Stages read their configuration from JSON with sorted keys.
    for section in sections:
        config = parse_config({"sharding": section}, where="test")
        sent = parse_config(json.loads(json.dumps(config.model_dump(mode="json"), sort_keys=True)), where="test")
        assert list(sent.sharding.fields) == list(section.get("fields", {}))
        assert keys(sent)["shard"] == keys(config)["shard"]
    # `auto` is what it stands for, and stands for what was the default.
    for section, shard_format in (({}, "webdataset"), ({"fields": images}, "webdataset")):
        named = parse_config({"sharding": {**section, "format": shard_format}}, where="test")
        assert keys(named)["shard"] == keys(parse_config({"sharding": section}, where="test"))["shard"]
    assert keys(RunConfig())["shard"] == BEFORE


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert len(fingerprint({})) == 16


def test_where_samples_are_cached_changes_no_parameters() -> None:
    cached = parse_config({"data": {"cache_dir": "/cache", "cache_bytes": 1}}, where="test")
    assert keys(cached)["train"] == keys(RunConfig())["train"]


def test_two_machines_are_not_two_threads() -> None:
    """Ranks, machines and threads stand in one hash."""
    made = {keys(with_override(f"resources.{name}=2"))["profile"] for name in ("ranks", "nodes", "threads")}
    assert len(made) == 3
