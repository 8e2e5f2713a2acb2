"""Checks of shards against what a task needs; without torch, so that it can be asked before a rank starts."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import DataError
from trainer.tasks.image_classification.pixels import normalisation

IMAGE_CLASSIFICATION_FIELDS: Mapping[str, str] = {"image": "image", "label": "class"}


def check_shards(config: RunConfig, shards: ShardManifest) -> None:
    """Refuse shards that a task of the tool cannot take.

    A task of the user's is asked by `load_task`, which needs torch.

    Raises:
        ConfigError: There is no mean and deviation of the pixels.
        DataError: A field is missing, or of another kind.
    """
    if not config.task.is_own:
        check_fields(IMAGE_CLASSIFICATION_FIELDS, shards, name=config.task.name)
        normalisation(config.data, shards)


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


def _or_else(field: str, kind: str, there: Mapping[str, str]) -> str:
    """Return what else helps where samples have several labels, and one is wanted."""
    several = kind == "class" and there.get(field) == "classes"
    return ", shard a source with one label a sample, or name a task of your own in task.name" if several else ""
