"""The named fields of a source (`sharding.fields`), and their cells as one JSON object for each sample.

A sample of named fields is a file (of the first field of kind image, else of kind bytes) or a row alone; a label (of
the first field of kind class, else of kind classes); and the cells of all other fields, by name: a number, a text, the
name or the list of names of classes, any JSON value, and of a further file its path (percent-encoded), size, version
and content hash.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, ShardingSection
from contracts.config.sharding import ROW_PREFIX, find_file, find_image, find_label
from sharding.reference import Reference, SourceFile

# Bytes of a row in a shard beside its cells: names of features, float32 beside float64, its path. Of 13 columns it is
# 214 bytes in a TFRecord; without it, shards of tables would be twice as large as they are meant to be.
ROW_FRAME_BYTES = 200


@dataclass(frozen=True)
class Fields:
    """The fields of a source, in the order of `sharding.fields`."""

    kinds: dict[str, FieldKind]
    file: str | None
    """Field of the file that a reference names; None: samples are rows without files."""
    image: str | None
    """Name of the first field of kind image, the only one that is converted, resized and measured."""
    label: str | None
    """Field of the label in a reference."""
    cell_names: tuple[str, ...]
    """Names of the fields in the cells of a reference."""

    @classmethod
    def of(cls, section: ShardingSection) -> Fields | None:
        """Return the fields of a configuration; None where samples are an image and a label."""
        return cls.of_kinds({name: field.kind for name, field in section.fields.items()}) if section.fields else None

    @classmethod
    def of_kinds(cls, kinds: dict[str, FieldKind]) -> Fields:
        """Return fields of these kinds."""
        file, label = find_file(kinds), find_label(kinds)
        cell_names = tuple(name for name in kinds if name not in (file, label))
        return cls(kinds, file, find_image(kinds), label, cell_names)

    @property
    def extra_files(self) -> list[str]:
        """Names of the fields of files in the cells."""
        return [name for name in self.cell_names if self.kinds[name] in FILE_KINDS]

    @property
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
        if extra_files := self.extra_files:
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


def make_row_path(label: bytes, cells: bytes) -> bytes:
    """Return the path of a row without files: a hash of its label and cells, independent of all other rows."""
    content = b"%d\0%b%b" % (len(label), label, cells)
    return f"{ROW_PREFIX}{hashlib.blake2b(content, digest_size=16).hexdigest()}".encode()


def count_path(path: bytes, number: int) -> bytes:
    """Return the path of the `number`-th repeat of a row, from 0 on; they sort in their order."""
    return path + b"-%08d" % number if number else path


def hash_cells(cells: bytes) -> bytes:
    """Return the hash of a row's content without its label, in the form of `Reference.content_hash`."""
    return b"md5:" + hashlib.md5(cells, usedforsecurity=False).hexdigest().encode()
