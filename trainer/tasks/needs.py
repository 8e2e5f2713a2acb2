"""Checks of shards against what a task needs; without torch, so that it can be asked before a rank starts."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.artifacts import ShardManifest
from contracts.config import CLASS_KINDS, RunConfig
from contracts.config.task import INPUT_KINDS
from contracts.errors import DataError
from contracts.learnable import check_classes, check_targets
from trainer.tasks.images.pixels import normalisation

# Fields of the tool's tasks by name, with their kind. A table's other numbers and categories are all inputs.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "image_classification": {"image": "image", "label": "class"},
    "image_multilabel": {"image": "image", "label": "classes"},
    "text_classification": {"text": "text", "label": "class"},
    "tabular_classification": {"label": "class"},
    "tabular_regression": {"label": "number"},
}


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
    elif "text" in FIELDS[name]:
        if shards.tokenizer is None:
            raise DataError(
                f"task {name} needs a tokenizer, and the shards have none",
                allowed="shards with the tokenizer of their field text",
                todo="set sharding.tokenizer: {} to train one, or its file to the URI of one",
            )
    else:
        require_table_inputs(shards, task=name)
    _check_labels(shards, name=name)


def table_inputs(shards: ShardManifest) -> dict[str, str]:
    """Return the fields that a task of tables learns from, by name, with their kind, in their order."""
    fields = shards.sample_fields.items()
    return {name: entry.kind for name, entry in fields if name != "label" and entry.kind in INPUT_KINDS}


def require_table_inputs(shards: ShardManifest, *, task: str) -> dict[str, str]:
    """Return `table_inputs`, and refuse shards that have none.

    Args:
        shards: Their manifest.
        task: task.name.

    Raises:
        DataError: There is none.
    """
    if found := table_inputs(shards):
        return found
    raise DataError(
        f"task {task} has nothing to learn from: the source has no field but label",
        allowed=f"fields of kind {', '.join(INPUT_KINDS)} besides label",
        todo='map columns to them, all at once by sharding.fields: {numbers: {columns: ["*"], kind: numbers}}',
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
            todo=f"put label first in sharding.fields, make {first!r} of kind text or category, or leave it out",
        )


def _check_labels(shards: ShardManifest, *, name: str) -> None:
    """Refuse labels that have too few values to learn.

    Raises:
        DataError: They have.
    """
    label = shards.sample_fields["label"]
    where = f"column {', '.join(map(repr, label.columns)) or 'label'} of the shards"
    if label.kind in CLASS_KINDS:
        check_classes(name, shards.classes, where)
    for target in label.statistics:
        if target.count and target.least is not None and target.most is not None:
            check_targets(target.least, target.most, where)


def _or_else(field: str, kind: str, there: Mapping[str, str]) -> str:
    """Return what else helps: the task whose fields these are, or one of the user's own."""
    fitting = [
        task
        for task, fields in FIELDS.items()
        if fields.get(field) == there.get(field)
        and all(there.get(name) == its for name, its in fields.items())
        # A table has no other fields of its own: its inputs are what else there is.
        and (len(fields) > 1 or any(kind in INPUT_KINDS for name, kind in there.items() if name != "label"))
    ]
    return f"; or, if the columns hold that, set task.name to {' or '.join(fitting)}" if fitting else ""
