"""Checks of shards for an export, from manifest and configuration, before torch starts."""

from __future__ import annotations

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.config.stages import MIN_CALIBRATION_SAMPLES
from contracts.errors import DataError
from contracts.stage import Stage


def check_export_samples(config: RunConfig, shards: ShardManifest) -> None:
    """Refuse shards without the samples that an export needs.

    Raises:
        DataError: They have no test sample, or too few training samples for export.precision.
    """
    samples = {name: split.samples for name, split in shards.splits.items()}
    if samples["test"] == 0:
        raise DataError(
            "the test split of the shards is empty: an export is proven on it",
            allowed="at least one test sample",
            todo="set sharding.splits.test above 0; where the source itself names splits (sharding.split_column), name "
            "test for some samples, or leave the split of some empty; then shard again",
        )
    precision = config.export.precision
    least = {"fp32": 0, "int8": MIN_CALIBRATION_SAMPLES}.get(precision, 1)
    if samples["train"] < least:
        more = "give more samples to training (sharding.splits)" if sum(samples.values()) > least else "add samples"
        raise DataError(
            f"the training split of the shards has {samples['train']} sample(s) to calibrate with",
            allowed=f"at least {least} for export.precision {precision}: the range of activations is taken from them",
            todo=f"{more} and shard again; or set export.precision to one that calibrates with fewer (fp16 takes what "
            "there is, fp32 none)",
        )


def check_export_of_run(stage: Stage, shards: ShardManifest) -> None:
    """Refuse shards that the export of this run will refuse; warn where the stage runs by itself.

    Raises:
        DataError: As `check_export_samples`, in a run.
    """
    try:
        check_export_samples(stage.config, shards)
    except DataError as error:
        if stage.run:
            raise
        if not stage.locate:
            stage.log(f"warning: these shards cannot be exported: {error.given}; to do: {error.todo}")
