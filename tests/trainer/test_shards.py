"""Shards that cannot be trained on are refused by name, before torch starts."""

import json

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.errors import DataError
from trainer.shards import load_shards


def test_multi_label_shards_are_refused(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards)
    changed = manifest.model_copy(update={"multi_label": True})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    with pytest.raises(DataError, match="multi-label"):
        load_shards(storage.normalise(tmp_path))


def test_shards_of_the_first_version_can_be_read(small_shards: str) -> None:
    values = json.loads(storage.read_bytes(storage.join(small_shards, MANIFEST_NAME)))
    for name in FIELDS_SINCE:
        values.pop(name)
    ShardManifest.parse(json.dumps(values).encode(), where="x")


FIELDS_SINCE = ("multi_label", "ignored")
