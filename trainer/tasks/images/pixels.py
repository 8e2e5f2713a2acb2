"""Mean and standard deviation of pixels; without torch, so that it can be asked before a rank starts."""

from __future__ import annotations

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError


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
