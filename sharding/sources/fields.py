"""The named fields of a source: their kinds, and how the cells of a sample travel with its reference.

A sample of named fields is a file (of the first field of kind image, else of kind bytes) or a row alone, a label (of
the first field of kind class, else of kind classes), and the cells of all other fields: the numbers as float64, the
length of each other content in bytes, and these contents, each in the order of the fields. A content is UTF-8 of text
and of the name of a class, and JSON of all else: the names of classes, any value, and of a file its path, size,
generation and hash.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from urllib.parse import unquote_to_bytes

from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, ShardingSection
from contracts.config.sharding import ROW_PREFIX, find_file, find_image, find_label
from sharding.limits import encode_path
from sharding.sources.reference import Reference, SourceFile

# Starts the path of a row without files: a relative path of a file has it only where somebody named a folder so.
_ROW_PREFIX = ROW_PREFIX.encode()
# What a row takes in a shard beside its cells: names of features, float32 beside float64, its path. Of 13 columns it is
# 214 bytes in a TFRecord; without it, shards of tables were twice as large as they were meant to be.
_FRAME_BYTES = 200


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

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Names of the fields of kind number in the cells."""
        return tuple(name for name in self.others if self.kinds[name] == "number")

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """Names of the other fields in the cells."""
        return tuple(name for name in self.others if self.kinds[name] != "number")

    @cached_property
    def further_files(self) -> tuple[str, ...]:
        """Names of the fields of files in the cells."""
        return tuple(name for name in self.others if self.kinds[name] in FILE_KINDS)

    @cached_property
    def vocabularies(self) -> tuple[str, ...]:
        """Names of the fields of classes in the cells."""
        return tuple(name for name in self.others if self.kinds[name] in CLASS_KINDS)

    def pack(self, numbers: Sequence[float], contents: Sequence[bytes]) -> bytes:
        """Return cells as they travel: equal cells are equal bytes; none where there is no other field."""
        return _head(len(numbers), len(contents)).pack(*numbers, *map(len, contents)) + b"".join(contents)

    def unpack(self, reference: Reference) -> dict[str, Any]:
        """Return the cells of a reference by name: numbers, and the contents of all others."""
        cells, num_numbers = reference.cells, len(self.numbers)
        head = _head(num_numbers, len(self.contents))
        values = head.unpack_from(cells)
        found: dict[str, Any] = dict(zip(self.numbers, values, strict=False))
        at = head.size
        for name, length in zip(self.contents, values[num_numbers:], strict=True):
            found[name] = cells[at : at + length]
            at += length
        return found

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
                path, size, generation, content_hash = json.loads(cells[name])
                is_image = self.kinds[name] == "image"
                file = SourceFile(unquote_to_bytes(path), size, generation, content_hash.encode(), is_image)
                found.append((name, file))
        return found


def pack_file(path: bytes, size: int, generation: int, content_hash: bytes) -> bytes:
    """Return the content of a field of a file."""
    return to_json([encode_path(path), size, generation, content_hash.decode()])


def make_row_path(label: bytes, cells: bytes) -> bytes:
    """Return the path of a row without files: a hash of its label and all its cells, so that no other row moves it."""
    content = b"%d\0%b%b" % (len(label), label, cells)
    return _ROW_PREFIX + hashlib.blake2b(content, digest_size=16).hexdigest().encode()


def add_frames(samples: Iterable[tuple[bytes, int, int]]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (path, split, bytes) of rows without files with what they take in a shard, whatever its format."""
    return ((path, split, size + _FRAME_BYTES) for path, split, size in samples)


def count_path(path: bytes, number: int) -> bytes:
    """Return the path of the `number`-th repeat of a row, from 0 on; they sort in their order."""
    return path + b"-%08d" % number if number else path


def hash_cells(cells: bytes) -> bytes:
    """Return the hash of a row's content but its label, in the form of `Reference.content_hash`."""
    return b"md5:" + hashlib.md5(cells, usedforsecurity=False).hexdigest().encode()


def to_json(value: Any) -> bytes:
    """Return a value as JSON: equal values are equal bytes.

    Raises:
        ValueError, TypeError, RecursionError: It is none.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


@cache
def _head(num_numbers: int, num_contents: int) -> struct.Struct:
    return struct.Struct(f"<{num_numbers}d{num_contents}I")
