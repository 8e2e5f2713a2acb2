"""Which shards can be trained on, and whether there is room: from manifest and configuration, before torch starts."""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection, RunConfig
from contracts.config.stages import MIN_CALIBRATION_SAMPLES
from contracts.errors import ConfigError, DataError
from contracts.stage import Stage
from trainer.data.shard_cache import ShardCache
from trainer.tasks.needs import check_shards


def load_shards(shards_uri: str, config: RunConfig, *, ranks: int = 1) -> ShardManifest:
    """Read the manifest of shards, and see to it that they fit training.

    Args:
        shards_uri: Their folder.
        config: The configuration.
        ranks: Training processes.

    Raises:
        ConfigError: Neither they nor the configuration have what the task needs besides fields; or the global batch is
            larger than the training split.
        DataError: There is no manifest, a field that the task needs is missing, or there are too few samples to train
            on.
    """
    manifest = ShardManifest.load(shards_uri)
    check_shards(config, manifest)
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
    batch = config.train.global_batch_size
    if batch > samples:
        raise ConfigError(
            f"train.global_batch_size {batch} is more than the {samples} samples of the training split",
            allowed=f"up to {samples}: an optimizer step takes a sample once",
            todo=f"set train.global_batch_size to {samples} or less, or add samples",
        )
    return manifest


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


def check_room(shards_uri: str, data: DataSection, manifest: ShardManifest) -> str | None:
    """See to it that this machine can keep shards of a bucket; the cache's folder is taken.

    Args:
        shards_uri: Folder of the shards.
        data: The configuration.
        manifest: Their manifest.

    Returns:
        What is set in vain, None if nothing is.

    Raises:
        ConfigError: The largest shard does not fit, with the number that would; or the cache's folder is not one.
    """
    if storage.is_local(shards_uri):
        if not data.cache_dir:
            return None
        return (
            f"data.cache_dir {data.cache_dir} has no effect: the shards are local files, which are read where they are"
        )
    ShardCache(shards_uri, manifest, data)
    return None
