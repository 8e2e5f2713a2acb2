"""The bytes of a safetensors file: eight bytes (length of the header, little-endian), the header as JSON, the data.

The format is described at https://huggingface.co/docs/safetensors. Files are made so that every tensor begins at a
multiple of its item size; files of others are read too. `parse_header` believes nothing: what it returns has known
types, and tensors that fill the data exactly, without holes or overlap.

Rows of a tensor are an ordinary tensor of the file; the header's `__metadata__` has `rows`, a JSON object of
{name: [shape of the whole tensor, first row]}.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

# What a checkpoint may hold: everything else, known to safetensors or not, is refused.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH_BYTES = 8
# The format's own limit.
MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 64
# Of the processors that this runs on, and what torch aligns memory to.
_LINE_BYTES = 64
_ROWS = "rows"


class Malformed(ValueError):
    """Bytes that are no safetensors file, or not one of a checkpoint."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the header."""
    stop: int
    global_shape: tuple[int, ...]
    """Shape of the whole tensor; `shape` where the file has all of it."""
    offset: int = 0
    """Place of its first row in the whole tensor."""

    @property
    def is_whole(self) -> bool:
        """Whether the file has the whole tensor."""
        return self.shape == self.global_shape


def make_header(
    tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...] | None, int]],
) -> tuple[bytes, list[Entry]]:
    """Lay out a file.

    Args:
        tensors: (name, dtype, shape, shape of the whole tensor or None where this is it, first row).

    Returns:
        The first bytes of the file up to the data, and its tensors in the order of their data.

    Raises:
        Malformed: A type that is not in `DTYPES`.
    """
    entries = []
    header: dict[str, Any] = {}
    rows = {}
    position = 0
    for name, dtype, shape, whole, offset in sorted(tensors, key=_place):
        if dtype not in _NAMES:
            raise Malformed(f"{name} is of type {dtype}, which a checkpoint cannot hold")
        stop = position + math.prod(shape) * dtype.itemsize
        entries.append(Entry(name, dtype, shape, position, stop, whole or shape, offset))
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [position, stop]}
        if whole is not None:
            rows[name] = [list(whole), offset]
        position = stop
    metadata = {"format": "pt"}
    if rows:
        metadata[_ROWS] = json.dumps(rows, separators=(",", ":"))
    content = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    # Padded, so that the data begins at a multiple of eight.
    content += b" " * (-len(content) % LENGTH_BYTES)
    return len(content).to_bytes(LENGTH_BYTES, "little") + content, entries


def _place(item: tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...] | None, int]) -> tuple[bool, int, str]:
    """Order tensors so that all begin at a multiple of their items' size, and what fills cache lines begins at one.

    There are no holes between tensors: one that does not fill its last line, such as an optimizer's count of steps,
    would push all behind it off the lines, and a copy then writes to two lines at a time.
    """
    name, dtype, shape, _, _ = item
    return math.prod(shape) * dtype.itemsize % _LINE_BYTES != 0, -dtype.itemsize, name


def header_bytes(first: bytes, file_bytes: int) -> int:
    """Return the length of the header from the first bytes of a file.

    Raises:
        Malformed: There is no room for such a header.
    """
    if len(first) < LENGTH_BYTES:
        raise Malformed(f"it has {len(first)} bytes, too few for a safetensors file")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
        raise Malformed(f"it claims a header of {length} bytes in a file of {file_bytes}")
    return length


def parse_header(content: bytes, data_bytes: int) -> list[Entry]:
    """Read a header.

    Args:
        content: The JSON.
        data_bytes: Number of bytes behind it.

    Returns:
        The tensors in the order of their data.

    Raises:
        Malformed: It is no such header, or tensors and data do not agree.
    """
    try:
        values = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
        metadata = values.pop("__metadata__", {}) if isinstance(values, dict) else {}
        rows = json.loads(metadata.get(_ROWS, "{}"), object_pairs_hook=_unique) if isinstance(metadata, dict) else None
    except (ValueError, TypeError, RecursionError) as error:
        raise Malformed(f"its header is no JSON of a safetensors file ({str(error)[:100]})") from None
    if not isinstance(values, dict) or not isinstance(rows, dict) or set(rows) - set(values):
        raise Malformed("its header is no object of tensors")
    entries = sorted((_entry(name, value, rows) for name, value in values.items()), key=lambda e: (e.start, e.stop))
    position = 0
    for entry in entries:
        if entry.start != position:
            raise Malformed(f"{_short(entry.name)} begins at byte {entry.start} of the data, {position} was expected")
        position = entry.stop
    if position != data_bytes:
        raise Malformed(f"its tensors have {position} bytes, its data {data_bytes}")
    return entries


def _entry(name: str, value: Any, rows: dict[str, Any]) -> Entry:
    label = _short(name)
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"{label} is not described by dtype, shape and data_offsets")
    dtype = DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise Malformed(f"{label} is of type {str(value['dtype'])[:40]!r}; allowed are {', '.join(DTYPES)}")
    shape, offsets = _sizes(label, value["shape"]), _sizes(label, value["data_offsets"])
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise Malformed(f"{label}: shape {shape} of {value['dtype']} does not take the bytes {offsets}")
    whole, offset = shape, 0
    if name in rows:
        described = rows[name]
        if not isinstance(described, list) or len(described) != 2 or type(described[1]) is not int:
            raise Malformed(f"{label}: its rows are not described by a shape and a number")
        whole, offset = _sizes(label, described[0]), described[1]
        if not shape or len(whole) != len(shape) or whole[1:] != shape[1:] or not 0 <= offset <= whole[0] - shape[0]:
            raise Malformed(f"{label}: rows of shape {shape} at {offset} are no part of {whole}")
    return Entry(name, dtype, shape, offsets[0], offsets[1], whole, offset)


def _sizes(label: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        raise Malformed(f"{label} has no list of sizes")
    # 2**63: a larger product is no number of bytes, and torch would not take it.
    if any(type(size) is not int or not 0 <= size < 2**63 for size in value):
        raise Malformed(f"{label} has a size that is no number of elements")
    if math.prod(size for size in value if size) >= 2**63:
        raise Malformed(f"{label} has more elements than there can be")
    return tuple(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


class FileStream(io.RawIOBase):
    """A file that is not written yet, as a stream: its header, then its data.

    Args:
        header: The first bytes.
        data: The rest; not copied before it is read.
    """

    def __init__(self, header: bytes, data: memoryview) -> None:
        self._header, self._data = header, data
        self._position = 0
        self.num_bytes = len(header) + len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes, fewer at the end."""
        at, first = self._position, len(self._header)
        stop = self.num_bytes if size is None or size < 0 else at + size
        content = self._header[at:stop] if at < first else b""
        if stop > first:
            content += bytes(self._data[max(0, at - first) : stop - first])
        self._position += len(content)
        return content

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.num_bytes}[whence]
        self._position = min(max(0, base + offset), self.num_bytes)
        return self._position
