"""Which shards can be trained on: decided from the manifest and the configuration, before torch starts."""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError, DataError


def load_shards(shards_uri: str, data: DataSection) -> ShardManifest:
    """Read the manifest of shards, and see to it that they fit training.

    Raises:
        ConfigError: Neither they nor the configuration say the pixels' mean and deviation.
        DataError: There is no manifest, or images have lists of labels.
    """
    manifest = ShardManifest.load(shards_uri)
    if manifest.multi_label:
        raise DataError(
            f"the shards in {storage.display(shards_uri)} hold lists of labels (multi-label)",
            allowed="shards with one label an image",
            todo="shard a source with one label an image; training on several labels is not built",
        )
    normalisation(data, manifest)
    return manifest


def normalisation(data: DataSection, manifest: ShardManifest) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the channels: the configuration's, else the manifest's.

    Raises:
        ConfigError: Neither has them.
    """
    mean = data.mean or manifest.mean
    std = data.std or manifest.std
    if mean is None or std is None:
        raise ConfigError(
            "data.mean and data.std are not set, and the shards were written without looking at pixels "
            f"(sharding.verify={manifest.verify})",
            allowed="shards that know the mean of their pixels, or both values in the configuration",
            todo="set data.mean and data.std, or shard with sharding.verify=decode or header",
        )
    # A channel that never changes has deviation 0: it is centred, and left at that.
    return mean, [value or 1.0 for value in std]
