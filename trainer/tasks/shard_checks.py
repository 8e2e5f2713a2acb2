"""Checks of shards against the needs of training and of a task; without torch, before a rank starts."""

from __future__ import annotations

from collections.abc import Mapping

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError, DataError

# Fields of built-in tasks by name, with their kind.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "image_classification": {"image": "image", "label": "class"},
    "image_multilabel": {"image": "image", "label": "classes"},
    "text_classification": {"text": "text", "label": "class"},
}


def load_shards(shards_uri: str, config: RunConfig, *, ranks: int = 1) -> ShardManifest:
    """Read the manifest of shards, and check that they fit training.

    Raises:
        ConfigError: `check_shards` refuses them, or the global batch is larger than the training split.
        DataError: There is no manifest, `check_shards` refuses them, or there are too few samples.
    """
    manifest = ShardManifest.load(shards_uri)
    check_shards(config, manifest)
    samples, batch = manifest.splits["train"].samples, config.train.global_batch_size
    if samples < max(1, ranks):
        where = f"the training split of the shards in {storage.display(shards_uri)}"
        raise DataError(
            f"{where} has {samples} samples for {ranks} ranks" if samples else f"{where} is empty",
            allowed="at least one training sample per rank",
            todo="add samples, give more of them to training (sharding.splits, or the splits in the manifest), or set "
            "resources.ranks lower",
        )
    if batch > samples:
        raise ConfigError(
            f"train.global_batch_size {batch} is more than the {samples} samples of the training split",
            allowed=f"up to {samples}: an optimizer step uses a sample at most once",
            todo=f"set train.global_batch_size to {samples} or less, or add samples",
        )
    return manifest


def check_shards(config: RunConfig, shards: ShardManifest) -> None:
    """Refuse shards that a built-in task cannot use; `load_task`, which needs torch, checks own tasks.

    Raises:
        ConfigError: There is no mean and deviation of the pixels.
        DataError: A field is missing, or of another kind; or there is no tokenizer, or there are too few classes.
    """
    name = config.task.name
    if config.task.is_own:
        return
    fields = FIELDS[name]
    check_fields(fields, shards, name=name)
    if shards.label_field != "label":
        raise DataError(
            f"task {name} learns the field 'label', and the classes of the shards are those of {shards.label_field!r}",
            allowed="label as the first field of kind class, or of kind classes where there is none of kind class",
            todo=f"put label first in sharding.fields, make {shards.label_field!r} of kind text, or leave it out",
        )
    if "image" in fields:
        normalisation(config.data, shards)
    elif shards.tokenizer is None:
        raise DataError(
            f"task {name} needs a tokenizer, and the shards have none",
            allowed="shards with the tokenizer of their field text",
            todo="set sharding.tokenizer: {} to train one, or its file to the URI of one",
        )
    # With several labels a single class is enough: each is a yes or no.
    least, classes = 1 if fields["label"] == "classes" else 2, shards.classes
    if len(classes) < least:
        present = f"a single class ({classes[0]})" if classes else "no class"
        raise DataError(
            f"column {shards.sample_fields['label'].column or 'label'!r} of the shards has {present}: too few",
            allowed=f"at least {least} {'classes' if least > 1 else 'class'}",
            todo="add rows of other classes, or name the column that holds classes in sharding.fields.label",
        )


def check_fields(needed: Mapping[str, str], shards: ShardManifest, *, name: str) -> None:
    """Refuse shards without the fields that task `name` needs; kinds by name.

    Raises:
        DataError: A field is missing, or of another kind.
    """
    kinds = {field: entry.kind for field, entry in shards.sample_fields.items()}
    for field, kind in needed.items():
        if kinds.get(field) == kind:
            continue
        todo = f"map a column to it in sharding.fields: {{{field}: {{column: ..., kind: {kind}}}}}"
        # Built-in tasks with these fields.
        fitting = [
            task
            for task, fields in FIELDS.items()
            if field in fields and all(kinds.get(key) == value for key, value in fields.items())
        ]
        if fitting:
            todo += f"; or, if the columns hold that, set task.name to {' or '.join(fitting)}"
        present = f"has it as {kinds[field]}" if field in kinds else "has no such field"
        raise DataError(
            f"task {name} needs the field {field!r} of kind {kind}, and the source {present}",
            allowed=f"shards with it; these have {', '.join(f'{key} ({value})' for key, value in kinds.items())}",
            todo=todo,
        )


def normalisation(data: DataSection, manifest: ShardManifest) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the channels: the configuration's, else the manifest's.

    Raises:
        ConfigError: Neither has them.
    """
    mean, std = data.mean or manifest.mean, data.std or manifest.std
    if mean is None or std is None:
        raise ConfigError(
            "data.mean and data.std are not set, and the shards were written without decoding images "
            f"(sharding.verify={manifest.verify})",
            allowed="shards with the mean of their pixels, or both values in the configuration",
            todo="set data.mean and data.std, or shard with sharding.verify=decode",
        )
    # A constant channel has deviation 0, and is only centred.
    return mean, [value or 1.0 for value in std]
