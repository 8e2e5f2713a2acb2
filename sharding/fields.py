"""The fields of a source (`sharding.fields`), and their cells as one JSON object for each sample.

A sample of named fields is a file (of the first field of kind image, else of kind bytes) or a row alone; a label (of
the first field of kind class, else of kind classes); and the cells of all other fields, by name: a number, a text, the
name or the list of names of classes, any JSON value, and of a further file its path (percent-encoded), size, version
and content hash.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any
from urllib.parse import unquote_to_bytes

from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, ShardingSection
from contracts.config.sharding import find_file, find_image, find_label
from sharding.reference import Reference, SourceFile


class Fields:
    """Fields by name, in the order of `sharding.fields`; without it they are an image and its label or labels.

    Args:
        section: Names the fields.
    """

    def __init__(self, section: ShardingSection) -> None:
        self.are_named = bool(section.fields)
        self.kinds: dict[str, FieldKind] = {name: field.kind for name, field in section.sample_fields.items()}
        self.columns = {name: field.column for name, field in section.sample_fields.items()}

    @cached_property
    def file(self) -> str | None:
        """Field of the file that a reference names; None: samples are rows without files."""
        return find_file(self.kinds)

    @cached_property
    def image(self) -> str | None:
        """Name of the first field of kind image, the only one that is converted, resized and measured."""
        return find_image(self.kinds)

    @cached_property
    def label(self) -> str | None:
        """Field of the label in a reference."""
        return find_label(self.kinds)

    @cached_property
    def cell_names(self) -> list[str]:
        """Names of the fields in the cells of a reference."""
        return [name for name in self.kinds if name not in (self.file, self.label)]

    @cached_property
    def vocabularies(self) -> list[str]:
        """Names of the fields of classes in the cells."""
        return [name for name in self.cell_names if self.kinds[name] in CLASS_KINDS]

    def cells(self, reference: Reference) -> dict[str, Any]:
        """Return the cells of a reference by name."""
        cells: dict[str, Any] = json.loads(reference.cells) if reference.cells else {}
        return cells

    def files_of(self, reference: Reference) -> list[tuple[str, SourceFile]]:
        """Return the files of a sample by field name; the file that the reference names comes first."""
        if self.file is None:
            return []
        files = {self.file: (reference.path, reference.size, reference.version, reference.content_hash)}
        if extra_files := [name for name in self.cell_names if self.kinds[name] in FILE_KINDS]:
            cells = self.cells(reference)
            for name in extra_files:
                path, size, version, content_hash = cells[name]
                files[name] = (unquote_to_bytes(path), size, version, content_hash.encode())
        return [(name, SourceFile(*file, is_image=self.kinds[name] == "image")) for name, file in files.items()]


def to_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8: equal values are equal bytes, without zero bytes and line breaks.

    Raises:
        ValueError, TypeError, RecursionError: It has no JSON, or holds half of a character.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
