"""Checks what the export stage is given, before anything heavy is imported.

Here: `Inputs` and `check_inputs`, called by trainer/export/task.py. The checkpoint says which model and transform are
exported; a configuration or shards that disagree with it are a mistake that is better found than followed. Nothing here
reads tensors or images.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError, DataError
from trainer.export.targets import Builder


@dataclass(frozen=True)
class Inputs:
    """What the work starts from."""

    checkpoint_uri: str
    checkpoint: CheckpointManifest
    shards_uri: str
    shards: ShardManifest
    builder: Builder
    data: DataSection
    """How shards in a bucket are read."""

    @property
    def image_size(self) -> int:
        """Side of the model's input, in pixels."""
        return int(self.checkpoint.data["image_size"])


def check_inputs(config: RunConfig, checkpoint: CheckpointManifest, shards: ShardManifest) -> None:
    """Refuse inputs that do not belong together.

    Raises:
        ConfigError: The configuration names another model or transform than the checkpoint's, or the shards are others
            than it was trained on.
        DataError: The shards have no test samples.
    """
    todo = "pass the checkpoint that was trained with this configuration, or correct the configuration"
    model = config.model.model_dump(mode="json")
    if model != checkpoint.model:
        raise ConfigError(
            f"checkpoint of another model: it holds {checkpoint.model}, the configuration says {model}",
            allowed="a checkpoint of the configuration's model",
            todo=todo,
        )
    for name, given in config.data.model_dump(mode="json", include={"image_size", "mean", "std"}).items():
        # An unset mean or std means that of the training split, which the checkpoint recorded.
        if given is not None and given != checkpoint.data[name]:
            raise ConfigError(
                f"data.{name} is {given}, the checkpoint was trained with {checkpoint.data[name]}",
                allowed="the transform of the checkpoint",
                todo=todo,
            )
    if shards.fingerprint != checkpoint.shards_fingerprint:
        # Another split could hold images that the model was trained on: its accuracy would be worth nothing.
        raise ConfigError(
            f"shards {shards.fingerprint}, but the checkpoint was trained on shards {checkpoint.shards_fingerprint}",
            allowed="the shards that the checkpoint was trained on",
            todo="pass their URI as --shards",
        )
    test = shards.splits.get("test")
    if test is None or test.samples == 0:
        raise DataError(
            "the test split of the shards is empty: parity and accuracy are measured on it",
            allowed="at least one test sample",
            todo="set sharding.splits.test above 0, then shard and train again",
        )
