"""Checks of shards against the needs of training and of a task; without torch, before a rank starts."""

from __future__ import annotations

from collections.abc import Mapping

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import CLASS_KINDS, RunConfig
from contracts.errors import ConfigError, DataError
from trainer.tasks.images.pixels import normalisation

# Fields of the tool's tasks by name, with their kind.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "image_classification": {"image": "image", "label": "class"},
    "image_multilabel": {"image": "image", "label": "classes"},
    "text_classification": {"text": "text", "label": "class"},
}


def load_shards(shards_uri: str, config: RunConfig, *, ranks: int = 1) -> ShardManifest:
    """Read the manifest of shards, and check that they fit training.

    Raises:
        ConfigError: Neither they nor the configuration have what the task needs besides fields; or the global batch is
            larger than the training split.
        DataError: There is no manifest, a field that the task needs is missing, or there are too few samples.
    """
    manifest = ShardManifest.load(shards_uri)
    check_shards(config, manifest)
    samples, batch = manifest.splits["train"].samples, config.train.global_batch_size
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
    if batch > samples:
        raise ConfigError(
            f"train.global_batch_size {batch} is more than the {samples} samples of the training split",
            allowed=f"up to {samples}: an optimizer step takes a sample once",
            todo=f"set train.global_batch_size to {samples} or less, or add samples",
        )
    return manifest


def check_shards(config: RunConfig, shards: ShardManifest) -> None:
    """Refuse shards that a task of the tool cannot take.

    A task of the user's is asked by `load_task`, which needs torch.

    Raises:
        ConfigError: There is no mean and deviation of the pixels.
        DataError: A field is missing, or of another kind; or there is no tokenizer, or nothing to learn from.
    """
    name = config.task.name
    if config.task.is_own:
        return
    check_fields(FIELDS[name], shards, name=name)
    _check_label_field(FIELDS[name], shards, name=name)
    if "image" in FIELDS[name]:
        normalisation(config.data, shards)
    elif shards.tokenizer is None:
        raise DataError(
            f"task {name} needs a tokenizer, and the shards have none",
            allowed="shards with the tokenizer of their field text",
            todo="set sharding.tokenizer: {} to train one, or its file to the URI of one",
        )
    _check_classes(name, shards)


def _check_classes(name: str, shards: ShardManifest) -> None:
    """Refuse fewer classes than a task can tell apart: two, or one where a sample has any number of them.

    Raises:
        DataError: There are fewer.
    """
    least, classes = 1 if name == "image_multilabel" else 2, shards.classes
    if len(classes) >= least:
        return
    column = shards.sample_fields["label"].column or "label"
    found = f"a single class ({classes[0]})" if classes else "no class"
    raise DataError(
        f"column {column!r} of the shards holds {found}: task {name} has nothing to tell apart",
        allowed=f"at least {least} {'classes' if least > 1 else 'class'}",
        todo="add rows of other classes, or name the column that holds classes in sharding.fields.label",
    )


def check_fields(needed: Mapping[str, str], shards: ShardManifest, *, name: str) -> None:
    """Refuse shards without the fields that a task needs.

    Args:
        needed: Kinds by name.
        shards: The shards' manifest.
        name: task.name.

    Raises:
        DataError: A field is missing, or of another kind.
    """
    there = {field: entry.kind for field, entry in shards.sample_fields.items()}
    for field, kind in needed.items():
        if there.get(field) != kind:
            has = f"has it as {there[field]}" if field in there else "has no such field"
            raise DataError(
                f"task {name} needs the field {field!r} of kind {kind}, and the source {has}",
                allowed=f"shards with it; these have {', '.join(f'{one} ({its})' for one, its in there.items())}",
                todo=f"map a column to it in sharding.fields: {{{field}: {{column: ..., kind: {kind}}}}}"
                + _or_else(field, kind, there),
            )


def _check_label_field(needed: Mapping[str, str], shards: ShardManifest, *, name: str) -> None:
    """Refuse shards whose classes, and their counts, are those of another field than the one that is learnt.

    Raises:
        DataError: They are.
    """
    first = shards.label_field
    if needed.get("label") in CLASS_KINDS and first != "label":
        raise DataError(
            f"task {name} learns the field 'label', and the classes of the shards are those of {first!r}",
            allowed="label as the first field of kind class, or of kind classes where there is none of kind class",
            todo=f"put label first in sharding.fields, make {first!r} of kind text, or leave it out",
        )


def _or_else(field: str, kind: str, there: Mapping[str, str]) -> str:
    """Return what else helps: the task whose fields these are, or one of the user's own."""
    fitting = [
        task
        for task, fields in FIELDS.items()
        if fields.get(field) == there.get(field) and all(there.get(name) == its for name, its in fields.items())
    ]
    return f"; or, if the columns hold that, set task.name to {' or '.join(fitting)}" if fitting else ""
