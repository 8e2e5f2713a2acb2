"""What the writers of both formats share: the sample, and a stream that counts and checksums what passes through it.

A writer is made for an open stream, takes samples one by one, and returns where each one lies in the shard, with its
checksum. Nothing here opens, names or publishes files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts.config import FieldKind

_Crcs = npt.NDArray[np.uint32]


class Value(NamedTuple):
    """One field of a sample, ready to be written."""

    name: str
    kind: FieldKind
    value: Any
    """image, bytes: the file; text: str; class: place and name of the class; classes: their places and their names;
    number: float; json: the value."""
    image_format: str = ""
    """Format of an image by its content."""


class Sample(NamedTuple):
    """One accepted sample, ready to be written."""

    key: bytes
    """16 bytes that identify the sample: a hash of its path."""
    content: bytes
    """The image file as it is stored; empty where there are `values`."""
    image_format: str
    """Format by content: png, jpeg, ... (records/decode.py)."""
    label: int
    class_name: str
    path: str
    """Path relative to the source, percent-encoded where it is not plain text; '%' always is."""
    width: int
    """In pixels; 0 where nobody looked."""
    height: int
    mode: str
    """Colour mode of the stored image, in Pillow's terms (L, RGB, CMYK, ...); empty where nobody looked."""
    labels: tuple[int, ...] | None = None
    """All labels of an image that may have several; None where each image has one."""
    class_names: tuple[str, ...] = ()
    """Names of `labels`."""
    values: tuple[Value, ...] = ()
    """The fields that `sharding.fields` named, in its order; empty where a sample is an image and a label."""


class Place(NamedTuple):
    """Where the whole of a sample lies in its shard: all members of a tar with their padding, or a tf.train.Example."""

    offset: int
    size: int
    crc32c: int


class Piece(NamedTuple):
    """Bytes that are written together, with their checksum."""

    parts: tuple[bytes, ...]
    size: int
    """Bytes of all parts."""
    crc32c: int

    @classmethod
    def of(cls, *parts: bytes) -> Piece:
        """Checksum `parts`, as they follow each other."""
        crc = 0
        for part in parts:
            crc = google_crc32c.extend(crc, part)
        return cls(parts, sum(map(len, parts)), crc)


class ShardWriter(Protocol):
    """What the writers of all formats do."""

    def write(self, sample: Sample) -> Place:
        """Append a sample; return where it is."""

    def close(self) -> None:
        """Write what ends the format; the stream stays open."""


class Writable(Protocol):
    """What a shard is written to."""

    def writelines(self, parts: Iterable[bytes], /) -> None:
        """Append `parts` one after another; all of them are taken."""


class ChecksumStream:
    """Passes bytes on to a stream, counting them and keeping what the crc32c of all of them is made of.

    Args:
        stream: A binary stream, at its start.
    """

    def __init__(self, stream: Writable) -> None:
        self._stream = stream
        self._crcs: list[int] = []
        self._sizes: list[int] = []
        self.position = 0

    def write(self, *pieces: Piece) -> None:
        """Append pieces one after another; they are passed on together."""
        self._stream.writelines([part for piece in pieces for part in piece.parts])
        for piece in pieces:
            self._crcs.append(piece.crc32c)
            self._sizes.append(piece.size)
            self.position += piece.size

    @property
    def crc32c(self) -> str:
        """Checksum of everything written so far, eight hex digits."""
        return f"{combine_crcs(self._crcs, self._sizes):08x}"


def combine_crcs(crcs: list[int], sizes: list[int]) -> int:
    """Return the crc32c of pieces as they follow each other, from the crc32c and the size in bytes of each.

    A checksum is linear: it is the sum of what each piece's becomes over as many zero bytes as follow the piece. For
    all pieces of a shard at once that takes a few milliseconds, where another pass takes 20 microseconds each 100 KB.
    """
    moved: _Crcs = np.array(crcs, np.uint32)
    ends = np.cumsum(np.array(sizes, np.uint64))
    if not len(moved):
        return 0
    following = ends[-1] - ends
    for bit in range(int(following[0]).bit_length()):
        chosen = (following >> np.uint64(bit)) & np.uint64(1) == 1
        moved[chosen] = _move(_zero_bytes(bit), moved[chosen])
    return int(np.bitwise_xor.reduce(moved))


@functools.cache
def _zero_bytes(bit: int) -> _Crcs:
    """Return what 2**bit zero bytes make of a checksum: [4, 256], for each value of each of its bytes."""
    if bit:
        half = _zero_bytes(bit - 1)
        return _move(half, half)
    # Of the checksum of zeros itself, which starts and ends inverted, only the linear part is wanted.
    constant = google_crc32c.extend(0, b"\0")
    values = [[google_crc32c.extend(value << 8 * byte, b"\0") ^ constant for value in range(256)] for byte in range(4)]
    return np.array(values, np.uint32)


def _move(table: _Crcs, crcs: _Crcs) -> _Crcs:
    found: _Crcs = table[0][crcs & 255] ^ table[1][crcs >> 8 & 255] ^ table[2][crcs >> 16 & 255] ^ table[3][crcs >> 24]
    return found
