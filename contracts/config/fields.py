"""The fields of a sample: what `sharding.fields` maps the columns of a table to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from contracts.config.base import Section

FieldKind = Literal["image", "text", "class", "classes", "number", "bytes", "json"]
# Kinds whose cells hold the URI or path of a file; all others hold their value.
FILE_KINDS: tuple[FieldKind, ...] = ("image", "bytes")
# Kinds whose values are names out of a list that the manifest holds.
CLASS_KINDS: tuple[FieldKind, ...] = ("class", "classes")
# What the path of a row without a file begins with: the rest is a hash.
ROW_PREFIX = "row:"
# It is part of the names of members of a tar, which have less than 100 bytes.
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class FieldSection(Section):
    """Where a field of a sample comes from, and what it is."""

    column: Annotated[str, Field(min_length=1)]
    """Column of a CSV or Parquet file, or key of a JSONL file."""
    kind: FieldKind
    """image, bytes: URI or path of a file; text: text; class: one name out of a list; classes: several; number: a
    float; json: any JSON value."""
    place: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Place among the fields: the first image is the one that is changed and measured. Unset: that in the file."""


def order_fields(fields: Mapping[str, FieldSection]) -> dict[str, FieldSection]:
    """Return fields in their order, each with its place: configurations travel as JSON with sorted keys.

    Raises:
        ValueError: Two have the same place.
    """
    given = [field.place for field in fields.values() if field.place is not None]
    if len(set(given)) < len(given):
        raise ValueError("two fields have the same place")
    behind = max(given, default=-1) + 1
    places = {name: behind + at if one.place is None else one.place for at, (name, one) in enumerate(fields.items())}
    return {
        name: fields[name].model_copy(update={"place": n})
        for n, name in enumerate(sorted(fields, key=places.__getitem__))
    }


def find_label(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the field that the index has a label of: the first of kind class, else of kind classes.

    Args:
        kinds: Kind of each field, in the order of the configuration.
    """
    found = [name for kind in CLASS_KINDS for name, own in kinds.items() if own == kind]
    return found[0] if found else None


def find_image(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the first field of kind image."""
    return next((name for name, kind in kinds.items() if kind == "image"), None)


def find_file(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the field whose file names a sample: the first of kind image, else of kind bytes; None: rows alone."""
    found = [name for kind in FILE_KINDS for name, own in kinds.items() if own == kind]
    return found[0] if found else None
