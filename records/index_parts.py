"""The packed index, version 2: part files with the place of every sample in its shard, and columns beside it.

A part holds the samples of several consecutive shards of one split. It is a header of 64 bytes, the rows [n], and each
column [n] by itself, little-endian: whoever needs one column reads nothing else. A row says where the whole sample
lies, not its image alone (records/whole_sample.py takes the image out of it). The manifest lists the parts in the order
of their samples, and has a checksum of the rows and columns of each shard: a range of a part can be checked without the
rest of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts import storage
from records.index import RECORD, Index, damaged_index

# Where one sample lies in its shard: the whole of it, from its first tar header to the end of its last padding, or a
# tf.train.Example without the framing of its record.
ROW = np.dtype([("offset", "<u8"), ("size", "<u4"), ("crc32c", "<u4"), ("key", "V16")])

_MAGIC = b"SHARDIDX"
_VERSION = 2
# Magic, version, bytes of a row, number of rows, and the columns as text: name:type, separated by commas.
_HEADER = struct.Struct("<8sIIQ40s")
HEADER_BYTES = _HEADER.size
# A column is read by its type's name in NumPy: plain little-endian numbers and nothing else.
_COLUMN_TYPES = {"<i4", "<i8", "<u4", "<u8"}

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PartLayout:
    """Where the rows and the columns of a part are in its file."""

    num_rows: int
    columns: tuple[tuple[str, np.dtype[Any]], ...]
    """Name and type of each, in their order in the file."""

    @property
    def num_bytes(self) -> int:
        """Length of the file."""
        return HEADER_BYTES + self.num_rows * (ROW.itemsize + sum(kind.itemsize for _, kind in self.columns))

    def header(self) -> bytes:
        """Return the first `HEADER_BYTES` bytes of the file."""
        columns = ",".join(f"{name}:{kind.str}" for name, kind in self.columns).encode("ascii")
        assert len(columns) <= 40, columns
        return _HEADER.pack(_MAGIC, _VERSION, ROW.itemsize, self.num_rows, columns)

    def place_of(self, column: str | None) -> tuple[int, np.dtype[Any]]:
        """Return the offset of a column's first element and its type; None stands for the rows.

        Raises:
            KeyError: There is no such column.
        """
        if column is None:
            return HEADER_BYTES, ROW
        at = HEADER_BYTES + self.num_rows * ROW.itemsize
        for name, kind in self.columns:
            if name == column:
                return at, kind
            at += self.num_rows * kind.itemsize
        raise KeyError(column)


def write_part(path: Path, rows: Array, columns: Mapping[str, Array]) -> None:
    """Write a part of an index and flush it to the disk; equal rows and columns are equal bytes.

    Args:
        path: File to write; one that is there is replaced, so give a temporary name and publish it.
        rows: [n] of dtype `ROW`, in the order of the index.
        columns: Name and values [n] of each column, in the order in which they are written.
    """
    assert rows.dtype == ROW and rows.ndim == 1, rows.dtype
    for name, values in columns.items():
        assert name.isidentifier() and values.dtype.str in _COLUMN_TYPES and values.shape == rows.shape, name
    layout = PartLayout(len(rows), tuple((name, values.dtype) for name, values in columns.items()))
    with path.open("wb") as stream:
        stream.write(layout.header())
        for values in (rows, *columns.values()):
            stream.write(np.ascontiguousarray(values).data)
        stream.flush()
        os.fsync(stream.fileno())


def checksum_rows(rows: Array, columns: Mapping[str, Array]) -> str:
    """Return the crc32c of a shard's rows and then its columns, in the order of the part: ShardEntry.rows_crc32c.

    Args:
        rows: [n] of dtype `ROW`, of one shard.
        columns: Name and values [n] of each column.
    """
    assert rows.dtype == ROW, rows.dtype
    crc = 0
    for values in (rows, *columns.values()):
        crc = google_crc32c.extend(crc, values.tobytes())
    return f"{crc:08x}"


def make_records(rows: Array, labels: Array | int, shards: Array | int) -> Index:
    """Return rows as records of dtype `RECORD` [n]: of the whole samples, with label and shard of each.

    Args:
        rows: [n] of dtype `ROW`.
        labels: [n], or one of all.
        shards: [n] place of each sample's shard in the manifest, or one of all.
    """
    records = np.empty(len(rows), RECORD)
    records["shard"], records["label"] = shards, labels
    for name in ROW.names or ():
        records[name] = rows[name]
    return records


def read_layout(uri: str) -> PartLayout:
    """Read the header of a part, wherever it lies.

    Raises:
        DataError: The file is missing, is no part of an index, or is of a newer version.
    """
    return parse_layout(_read(uri, 0, HEADER_BYTES), storage.display(uri))


def parse_layout(header: bytes, where: str) -> PartLayout:
    """Return what the first `HEADER_BYTES` bytes of a part say; `where` is how errors call it.

    Raises:
        DataError: They are no header of a part, or that of a newer version.
    """
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        raise damaged_index(where, "is no index of shards")
    _, version, row_bytes, num_rows, described = _HEADER.unpack(header)
    if version != _VERSION or row_bytes != ROW.itemsize:
        raise damaged_index(where, f"has version {version} with {row_bytes} bytes a sample, not {_VERSION}")
    columns = []
    for each in filter(None, described.rstrip(b"\0").decode("ascii", "replace").split(",")):
        name, _, kind = each.partition(":")
        if kind not in _COLUMN_TYPES:
            raise damaged_index(where, f"has a column {each!r}, whose type is not known")
        columns.append((name, np.dtype(kind)))
    return PartLayout(int(num_rows), tuple(columns))


def read_part_rows(uri: str, layout: PartLayout, first: int, count: int) -> Array:
    """Read the rows [first, first + count) of a part: [count] of dtype `ROW`.

    Raises:
        DataError: The file is missing, or ends before the rows do.
    """
    return _read_values(uri, layout, None, first, count)


def read_part_column(uri: str, layout: PartLayout, column: str, count: int) -> Array:
    """Read the first values of a column of a part: [count] of its type.

    Raises:
        DataError: The file is missing, has no such column, or ends before the values do.
    """
    return _read_values(uri, layout, column, 0, count)


def _read_values(uri: str, layout: PartLayout, column: str | None, first: int, count: int) -> Array:
    if not 0 <= first <= first + count <= layout.num_rows:
        raise IndexError(f"rows {first} to {first + count} of {layout.num_rows}")
    try:
        at, kind = layout.place_of(column)
    except KeyError:
        raise damaged_index(storage.display(uri), f"has no column {column}") from None
    content = _read(uri, at + first * kind.itemsize, count * kind.itemsize)
    if len(content) < count * kind.itemsize:
        raise damaged_index(storage.display(uri), f"ends before row {first + count}")
    return np.frombuffer(content, kind)


def _read(uri: str, offset: int, size: int) -> bytes:
    try:
        return storage.read_range(uri, offset, size) if size else b""
    except OSError as error:
        raise damaged_index(storage.display(uri), f"cannot be read ({error.strerror or 'it is not there'})") from None
