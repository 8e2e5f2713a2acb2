"""The packed index: one file that says, for every sample of all shards, where its image bytes are.

A header of 64 bytes, then 40 bytes a sample, little-endian, ordered by split (train, validation, test), then shard,
then place in the shard: a split is a contiguous range. It is read by the record (records/index_file.py), so
opening 10^8 samples costs nothing. Readers need nothing else: `read_payload` is the same for all formats. Nothing here
knows how shards are framed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.errors import DataError

INDEX_NAME = "index.bin"
RECORD = np.dtype(
    [
        ("shard", "<u4"),  # place in ShardManifest.shards
        ("label", "<i4"),
        ("offset", "<u8"),  # of the image bytes in the shard file
        ("size", "<u4"),  # of the image, in bytes
        ("crc32c", "<u4"),  # of the image
        ("key", "V16"),
    ]
)
MAX_IMAGE_BYTES = 2**32 - 1
# Label of an image that may have several: they are in its shard.
NO_LABEL = -1

_MAGIC = b"SHARDIDX"
_VERSION = 1
# Magic, version, bytes a record, count; padded so that records start aligned.
_HEADER = struct.Struct("<8sIIQ40x")
HEADER_BYTES = _HEADER.size

Index = npt.NDArray[np.void]


class DamagedSample(DataError):
    """The bytes of one sample are wrong, or are no image; what is around it may be right."""


def write_index(path: Path, parts: Index | Iterable[Index]) -> int:
    """Write an index file and flush it to the disk; return the number of its records.

    Args:
        path: File to write; one that is there is replaced, so give a temporary name and publish it.
        parts: The records [N] of dtype `RECORD`, in the order of the index, whole or as an iterable of such pieces:
            of all shards together they may be more than fits into memory.
    """
    count = 0
    with path.open("wb") as stream:
        stream.write(bytes(_HEADER.size))
        for part in [parts] if isinstance(parts, np.ndarray) else parts:
            assert part.dtype == RECORD and part.ndim == 1, part.dtype
            stream.write(part.tobytes())
            count += len(part)
        stream.seek(0)
        stream.write(_HEADER.pack(_MAGIC, _VERSION, RECORD.itemsize, count))
        stream.flush()
        os.fsync(stream.fileno())
    return count


def check_length(path: Path, descriptor: int) -> int:
    """Return the number of records of an open index file.

    Raises:
        DataError: It is no index, is of a newer version, or its length does not fit its header.
    """
    try:
        count = _read_header(path, read_fully(descriptor, 0, _HEADER.size))
        found_bytes = os.fstat(descriptor).st_size
    except OSError as error:
        raise damaged_index(path, f"cannot be read ({error.strerror})") from None
    expected_bytes = _HEADER.size + count * RECORD.itemsize
    if found_bytes != expected_bytes:
        raise damaged_index(path, f"has {found_bytes} bytes, its header says {expected_bytes}")
    return count


def read_part(uri: str, first: int, count: int) -> Index:
    """Read a range of an index, wherever it lies: [count] of dtype `RECORD`.

    Args:
        uri: Of the index.
        first: Place of the first record.
        count: Number of records.

    Raises:
        DataError: The file is missing, is no index, is of a newer version, or ends before the range does.
    """
    shown = storage.display(uri)
    try:
        _read_header(shown, storage.read_range(uri, 0, _HEADER.size))
        content = storage.read_range(uri, _HEADER.size + first * RECORD.itemsize, count * RECORD.itemsize)
    except OSError as error:
        raise damaged_index(shown, f"cannot be read ({error.strerror or 'it is not there'})") from None
    if len(content) != count * RECORD.itemsize:
        raise damaged_index(shown, f"ends before record {first + count}")
    return np.frombuffer(content, RECORD)


def read_payload(shard: Path | int | str, record: Any, *, name: str | None = None) -> bytes:
    """Return the image bytes of one sample, checked.

    Args:
        shard: Path or URI of the shard file, or a descriptor of it; its file position is neither used nor moved.
        record: One element of the index.
        name: What errors call the shard; unset: its path or URI, or its number.

    Raises:
        DataError: The shard cannot be read, or no file is as long as the index says.
        DamagedSample: It is shorter than the index says, or the bytes have another crc32c.
    """
    where = f"shard {name or (int(record['shard']) if isinstance(shard, int) else shard)}"
    size = int(record["size"])
    try:
        if isinstance(shard, str):
            content = storage.read_range(shard, int(record["offset"]), size)
        elif isinstance(shard, int):
            content = read_fully(shard, int(record["offset"]), size)
        else:
            with shard.open("rb") as stream:
                content = read_fully(stream.fileno(), int(record["offset"]), size)
    except OSError as error:
        raise _bad_payload(where, record, f"cannot be read ({error.strerror or 'it is not there'})") from None
    except OverflowError:
        raise _bad_payload(where, record, "no file has that offset") from None
    if damage := find_damage_of(content, record):
        raise _bad_payload(where, record, damage, kind=DamagedSample)
    return content


def find_damage_of(content: bytes, record: Any) -> str | None:
    """Return what is wrong with the image bytes of a sample as the index knows them, None when they are right."""
    if len(content) != int(record["size"]):
        return f"ends {int(record['size']) - len(content)} bytes too early"
    found = google_crc32c.value(content)
    if found != int(record["crc32c"]):
        return f"has crc32c {found:08x}, the index says {int(record['crc32c']):08x}"
    return None


def key_of(record: Any) -> str:
    """Return the key of a sample as its 32 hex digits."""
    return bytes(record["key"].tobytes()).hex()


def read_fully(descriptor: int, offset: int, size: int) -> bytes:
    """Return the bytes [offset, offset + size) of an open file, fewer where it ends before."""
    content = os.pread(descriptor, size, offset)
    while len(content) < size:
        # One call returns at most about 2 GiB, and less when a signal comes.
        more = os.pread(descriptor, size - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content


def _read_header(where: Path | str, header: bytes) -> int:
    """Return the number of records that a header tells."""
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise damaged_index(where, "is no index of shards")
    _, version, record_bytes, count = _HEADER.unpack(header)
    if version != _VERSION or record_bytes != RECORD.itemsize:
        raise damaged_index(where, f"has version {version} with {record_bytes} bytes a sample, not {_VERSION}")
    return int(count)


def damaged_index(path: Path | str, what: str) -> DataError:
    """Return the error of an index that `what` is wrong with."""
    return DataError(
        f"{path} {what}",
        allowed="the index that the shard stage wrote",
        todo="run the shard stage again with --fresh, or copy the folder of shards again",
    )


def _bad_payload(where: str, record: Any, what: str, kind: type[DataError] = DataError) -> DataError:
    return kind(
        f"{where}, sample {key_of(record)} at offset {int(record['offset'])}: {what}",
        allowed="shards that agree with their index",
        todo="run the shard stage again with --fresh, or copy the folder of shards again",
    )
