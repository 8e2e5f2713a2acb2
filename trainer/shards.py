"""Which shards can be trained on: decided from the manifest and the configuration, before torch starts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError, DataError
from records.index import read_part

# Records of the index read at a time for their labels: 40 MB.
LABELS_AT_A_TIME = 1_000_000


def load_shards(shards_uri: str, data: DataSection, *, ranks: int = 1) -> ShardManifest:
    """Read the manifest of shards, and see to it that they fit training.

    Args:
        shards_uri: Their folder.
        data: The configuration.
        ranks: Training processes.

    Raises:
        ConfigError: Neither they nor the configuration say the pixels' mean and deviation.
        DataError: There is no manifest, images have lists of labels, or there are too few to train on.
    """
    manifest = ShardManifest.load(shards_uri)
    if manifest.multi_label:
        raise DataError(
            f"the shards in {storage.display(shards_uri)} hold lists of labels (multi-label)",
            allowed="shards with one label an image",
            todo="shard a source with one label an image; training on several labels is not built",
        )
    normalisation(data, manifest)
    samples = manifest.splits["train"].samples
    if samples == 0:
        raise DataError(
            f"the training split of the shards in {storage.display(shards_uri)} is empty",
            allowed="at least one training sample per rank",
            todo="add images, or give more of them to training (sharding.splits, or the splits in the manifest)",
        )
    if samples < ranks:
        raise DataError(
            f"the training split has {samples} samples for {ranks} ranks",
            allowed="at least one sample per rank",
            todo="add images, or set resources.ranks lower",
        )
    return manifest


def load_labels(shards_uri: str, manifest: ShardManifest, split: str) -> npt.NDArray[np.int32]:
    """Read the label of each place of a split from the index, wherever it lies: [num_samples].

    Raises:
        DataError: The index is missing or damaged.
    """
    entry = manifest.splits[split]
    uri = storage.join(shards_uri, manifest.index.name)
    labels = np.empty(entry.samples, dtype=np.int32)
    for start in range(0, entry.samples, LABELS_AT_A_TIME):
        count = min(LABELS_AT_A_TIME, entry.samples - start)
        labels[start : start + count] = read_part(uri, entry.first + start, count)["label"]
    return labels


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
