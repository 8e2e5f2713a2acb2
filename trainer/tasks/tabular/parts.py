"""Tensors of a table's network that belong to columns and to values of categories, for weights to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.architecture import is_own
from trainer.tasks.tabular.mlp import embedding_width
from trainer.weights.parts import InputParts, Part

_HEAD = ("body.head.weight", "body.head.bias")
_Categories = dict[str, Sequence[str]]


def match_columns(section: ModelSection, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> InputParts:
    """Return the tensors of two networks that depend on their columns.

    Args:
        section: The model section, of which the source's network is taken to be made too.
        ours: What the task says of its columns and target (`document`).
        theirs: The same of the source; without `fields` nothing is known of its columns.

    Raises:
        ModelError: The columns differ, and nobody knows which tensors of the network belong to them.
    """
    numbers, categories = _columns_of(ours)
    try:
        their_numbers, their_categories = _columns_of(theirs)
    except (LookupError, TypeError):
        # The document of another task.
        their_numbers, their_categories, theirs = [], {}, {}
    same = (numbers, list(categories.items())) == (their_numbers, list(their_categories.items()))
    kept = {"largest", "body.offsets"} if not is_own(section) else {"largest"}
    if "target" in ours and ours["target"] != theirs.get("target"):
        # An output in the unit of another target.
        kept |= {"target", *(() if is_own(section) else _HEAD)}
    by_name = not is_own(section) and _has_parts(section)
    if not by_name and not same and "fields" in theirs:
        raise ModelError(
            f"model.weights were trained on other columns or values of categories: {_difference(ours, theirs)}",
            allowed="weights of the same columns and vocabularies: which tensors of this network belong to them is not "
            "known (of mlp with a depth from 1 on, and of table_transformer, they are matched by name)",
            todo="shard the table with the same sharding.fields, as an increment of the shards that the weights were "
            "trained on (sharding.incremental), or name other weights",
        )
    made = _parts if by_name else _of_numbers
    known = made(section, their_numbers, their_categories) if "fields" in theirs else {}
    return InputParts(made(section, numbers, categories), known, frozenset(kept))


def _columns_of(document: Mapping[str, Any]) -> tuple[list[str], _Categories]:
    """Return the column of each number, and the vocabulary of each column of categories, in the network's order."""
    numbers: list[str] = []
    categories: _Categories = {}
    for one in document.get("fields", ()):
        columns = list(one["columns"])
        if one["kind"] == "category":
            categories[columns[0]] = list(one["vocabulary"])
        elif one["is_list"]:
            numbers += [f"{columns[0]}[{place}]" for place in range(one["numbers"])]
        else:
            numbers += columns
    return numbers, categories


def _has_parts(section: ModelSection) -> bool:
    # Of an mlp without layers the columns and the classes are those of one tensor.
    return section.architecture != "mlp" or section.arguments.get("depth", 1) != 0


def _of_numbers(section: ModelSection, numbers: Sequence[str], categories: _Categories) -> dict[str, Part]:
    """Return mean and deviation of the numbers."""
    if not numbers:
        return {}
    # A deviation of 0 is that of a column with one value, of which nothing was learnt.
    return {"mean": Part("mean", numbers), "scale": Part("scale", numbers, skips_zero=True)}


def _parts(section: ModelSection, numbers: Sequence[str], categories: _Categories) -> dict[str, Part]:
    """Return all tensors of one of the tool's architectures that belong to columns."""
    found = _of_numbers(section, numbers, categories)
    rows = {column: ["", *(f"={value}" for value in values)] for column, values in categories.items()}
    if section.architecture == "mlp":
        inside = [f"number {column}" for column in numbers]
        for place, (column, names) in enumerate(rows.items()):
            width = embedding_width(len(names) - 1)
            found[f"embedding {column}"] = Part(f"body.embeddings.{place}.weight", names)
            # An embedding of another width is another one.
            inside += [f"category {column} {width} {at}" for at in range(width)]
        return found | {"first layer": Part("body.layers.0.weight", inside, dim=1)}
    if numbers:
        found |= {name: Part(f"body.{name}", numbers) for name in ("weight", "bias")}
    if rows:
        values = [f"{column} {name}" for column, names in rows.items() for name in names]
        found["embedding"] = Part("body.embedding.weight", values)
        found["category_bias"] = Part("body.category_bias", list(rows))
    return found


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Name the first columns that differ."""
    (numbers, categories), (their_numbers, their_categories) = _columns_of(ours), _columns_of(theirs)
    if numbers != their_numbers:
        return f"numbers {', '.join(their_numbers[:5]) or 'none'} there, {', '.join(numbers[:5]) or 'none'} here"
    if list(categories) != list(their_categories):
        return f"categories {', '.join(their_categories) or 'none'} there, {', '.join(categories) or 'none'} here"
    column = next(one for one in categories if categories[one] != their_categories[one])
    return f"column {column!r} has {len(their_categories[column])} values there, {len(categories[column])} here"
