"""Shards that cannot be trained on are refused by name, before torch starts."""

import json

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError, DataError
from trainer.shards import load_shards, normalisation


def test_multi_label_shards_are_refused(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, DataSection())
    changed = manifest.model_copy(update={"multi_label": True})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    with pytest.raises(DataError, match="multi-label"):
        load_shards(storage.normalise(tmp_path), DataSection())


def test_shards_without_a_mean_need_one_in_the_configuration(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, DataSection())
    changed = manifest.model_copy(update={"mean": None, "std": None, "verify": "none"})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    uri = storage.normalise(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std"):
        load_shards(uri, DataSection())
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std"):
        load_shards(uri, DataSection(mean=[0.5] * 3))
    data = DataSection(mean=[0.5] * 3, std=[0.25] * 3)
    assert normalisation(data, load_shards(uri, data)) == ([0.5] * 3, [0.25] * 3)


def test_shards_of_the_first_version_can_be_read(small_shards: str) -> None:
    values = json.loads(storage.read_bytes(storage.join(small_shards, MANIFEST_NAME)))
    for name in FIELDS_SINCE:
        values.pop(name)
    ShardManifest.parse(json.dumps(values).encode(), where="x")


FIELDS_SINCE = (
    "code_version",
    "duplicates",
    "ignored",
    "images",
    "multi_label",
    "neighbours",
    "prepared",
    "verify",
)
