"""Parts of an index of version 2: bytes, ranges of rows and columns, checksums, damage."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from contracts import storage
from contracts.errors import DataError
from records.index_parts import (
    HEADER_BYTES,
    ROW,
    Array,
    checksum_rows,
    read_layout,
    read_part_column,
    read_part_rows,
    write_part,
)


def make_rows(count: int) -> tuple[Array, dict[str, Array]]:
    random = np.random.default_rng(count)
    rows = np.zeros(count, ROW)
    rows["offset"] = np.cumsum(random.integers(1, 2**33, count))
    rows["size"], rows["crc32c"] = (random.integers(0, 2**32, count, dtype=np.uint32) for _ in range(2))
    rows["key"] = np.frombuffer(random.bytes(16 * count), "V16")
    columns = {
        "label": random.integers(-1, 1000, count).astype("<i4"),
        "source": random.integers(0, 2**64, count, dtype=np.uint64).astype("<u8"),
    }
    return rows, columns


def test_layout_of_the_file(tmp_path: Path) -> None:
    """The bytes are those that the documentation gives: others read them without this code."""
    rows, columns = make_rows(5)
    write_part(tmp_path / "part", rows, columns)
    content = (tmp_path / "part").read_bytes()
    header = b"SHARDIDX" + (2).to_bytes(4, "little") + (32).to_bytes(4, "little") + (5).to_bytes(8, "little")
    assert content[:64] == (header + b"label:<i4,source:<u8").ljust(64, b"\0")
    assert content[64:] == rows.tobytes() + columns["label"].tobytes() + columns["source"].tobytes()
    layout = read_layout(storage.normalise(tmp_path / "part"))
    assert (layout.num_rows, layout.num_bytes, HEADER_BYTES) == (5, len(content), 64)
    assert checksum_rows(rows, columns) == f"{google_crc32c.value(content[64:]):08x}"
    assert checksum_rows(rows[1:3], {}) == f"{google_crc32c.value(content[96:160]):08x}"


@pytest.mark.parametrize(("first", "count"), [(0, 7), (3, 2), (6, 1), (7, 0)])
def test_ranges(tmp_path: Path, first: int, count: int) -> None:
    """A range of rows and of each column is what was written there."""
    rows, columns = make_rows(7)
    write_part(tmp_path / "part", rows, columns)
    uri = storage.normalise(tmp_path / "part")
    layout = read_layout(uri)
    chosen = slice(first, first + count)
    assert read_part_rows(uri, layout, first, count).tobytes() == rows[chosen].tobytes()
    for name, values in columns.items():
        found = read_part_column(uri, layout, name, count)
        assert found.dtype == values.dtype and found.tolist() == values[:count].tolist()
    with pytest.raises(IndexError):
        read_part_rows(uri, layout, first, 8)


def test_damaged_parts(tmp_path: Path) -> None:
    """What is no part, is newer, was cut short or is missing is named."""
    path = tmp_path / "part"
    rows, columns = make_rows(3)
    write_part(path, rows, columns)
    uri, content = storage.normalise(path), path.read_bytes()
    layout = read_layout(uri)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match="ends before row 3"):
        read_part_column(uri, layout, "source", 3)
    with pytest.raises(DataError, match="no column colour"):
        read_part_column(uri, layout, "colour", 3)
    for changed, message in (
        (b"X" + content[1:], "no index of shards"),
        (content[:63], "no index of shards"),
        (content[:8] + b"\3" + content[9:], "version 3"),
        (content.replace(b"label:<i4", b"label:|O8"), "column 'label:|O8'"),
    ):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=message.replace("|", "[|]")):
            read_layout(uri)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        read_layout(uri)
