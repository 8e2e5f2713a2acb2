"""The named fields of a source: their kinds, and how the cells of a sample travel with its reference.

A sample of named fields is a file (of the first field of kind image, else of kind bytes) or a row alone, a label (of
the first field of kind class, else of kind classes), and the cells of all other fields. The cells are a JSON list in
the order of `Fields.others`: a file is its path, size, generation and hash, a class its name, a number that is missing
null, all else its value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from contracts import storage
from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, ShardingSection
from contracts.config.fields import find_file, find_image, find_label
from contracts.errors import ConfigError
from sharding.limits import encode_path
from sharding.sources.reference import Reference, SourceFile
from sharding.sources.tables import SUFFIXES

# Starts the path of a row without files: a relative path of a file has it only where somebody named a folder so.
_ROW_PREFIX = b"row:"


@dataclass(frozen=True)
class Fields:
    """The fields of a source, in the order of `sharding.fields`."""

    kinds: dict[str, FieldKind]
    file: str | None
    """Name of the field whose file a reference names; None: samples are rows without files."""
    image: str | None
    """Name of the first field of kind image, which alone is converted, resized and measured."""
    label: str | None
    """Name of the field that a reference has the label of."""
    others: tuple[str, ...]
    """Names of the fields whose cells a reference holds."""

    @classmethod
    def of(cls, section: ShardingSection) -> Fields | None:
        """Return the fields of a configuration; None where samples are an image and a label."""
        if not section.fields:
            return None
        kinds = {name: field.kind for name, field in section.fields.items()}
        file, label = find_file(kinds), find_label(kinds)
        others = tuple(name for name in kinds if name not in (file, label))
        return cls(kinds, file, find_image(kinds), label, others)

    @property
    def further_files(self) -> tuple[str, ...]:
        """Names of the fields of files in the cells."""
        return tuple(name for name in self.others if self.kinds[name] in FILE_KINDS)

    @property
    def vocabularies(self) -> tuple[str, ...]:
        """Names of the fields of classes in the cells."""
        return tuple(name for name in self.others if self.kinds[name] in CLASS_KINDS)

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the fields of kind category."""
        return tuple(name for name in self.others if self.kinds[name] == "category")

    def unpack(self, reference: Reference) -> dict[str, Any]:
        """Return the cells of a reference by name."""
        return dict(zip(self.others, json.loads(reference.cells), strict=True)) if self.others else {}

    def first_file(self, reference: Reference) -> SourceFile:
        """Return the file that a reference names."""
        assert self.file is not None
        is_image = self.kinds[self.file] == "image"
        return SourceFile(reference.path, reference.size, reference.generation, reference.content_hash, is_image)

    def files_of(self, reference: Reference) -> list[tuple[str, SourceFile]]:
        """Return the files of a sample, each with the name of its field; first the one that the reference names."""
        if self.file is None:
            return []
        found = [(self.file, self.first_file(reference))]
        further = self.further_files
        if further:
            cells = self.unpack(reference)
            for name in further:
                path, size, generation, content_hash = cells[name]
                is_image = self.kinds[name] == "image"
                file = SourceFile(unquote_to_bytes(path), size, generation, content_hash.encode(), is_image)
                found.append((name, file))
        return found


def check_has_columns(section: ShardingSection, uri: str) -> None:
    """Raise ConfigError where columns are mapped and the source has none."""
    if section.fields and not uri.lower().endswith(tuple(SUFFIXES)):
        raise ConfigError(
            f"sharding.source {storage.display(uri)} has no columns, and sharding.fields maps columns",
            allowed=f"a file with columns ({', '.join(SUFFIXES)}); class folders have the fields image and label",
            todo="give a file, or unset sharding.fields",
        )


def pack_cells(values: Sequence[Any]) -> bytes:
    """Return cells as they travel; equal cells are equal bytes. None where there is none.

    Raises:
        ValueError: A value is no JSON.
    """
    return _to_json(values) if values else b""


def pack_file(path: bytes, size: int, generation: int, content_hash: bytes) -> list[Any]:
    """Return the cell of a file."""
    return [encode_path(path), size, generation, content_hash.decode()]


def make_row_path(cells: Mapping[str, Any]) -> bytes:
    """Return the path of a row without files: a hash of all its cells by name, so that no other row moves it."""
    return _ROW_PREFIX + hashlib.blake2b(_to_json(cells), digest_size=16).hexdigest().encode()


def count_path(path: bytes, number: int) -> bytes:
    """Return the path of the `number`-th repeat of a row, from 0 on; they sort in their order."""
    return path + b"-%08d" % number if number else path


def hash_cells(cells: bytes) -> bytes:
    """Return the hash of a row's content but its label, in the form of `Reference.content_hash`."""
    return b"md5:" + hashlib.md5(cells, usedforsecurity=False).hexdigest().encode()


def _to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
