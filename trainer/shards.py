"""Which shards can be trained on: decided from the manifest and the configuration, before torch starts."""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError


def load_shards(shards_uri: str) -> ShardManifest:
    """Read the manifest of shards, and see to it that they fit training.

    Raises:
        DataError: There is none, or images have lists of labels.
    """
    manifest = ShardManifest.load(shards_uri)
    if manifest.multi_label:
        raise DataError(
            f"the shards in {storage.display(shards_uri)} hold lists of labels (multi-label)",
            allowed="shards with one label an image",
            todo="shard a source with one label an image; training on several labels is not built",
        )
    return manifest
