"""What the writers of both formats share: the sample, and a stream that counts and checksums what passes through it.

A writer is made for an open stream, takes samples one by one, and returns where the raw image bytes of each one lie in
the shard; a reader that has the index needs no knowledge of the format. Nothing here opens, names or publishes files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import google_crc32c


class Sample(NamedTuple):
    """One accepted image, ready to be written."""

    key: bytes
    """16 bytes that identify the sample: a hash of its path."""
    content: bytes
    """The image file as it was found."""
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


class Place(NamedTuple):
    """Where the raw image bytes of a sample lie in its shard."""

    offset: int
    size: int


class ShardWriter(Protocol):
    """What the writers of all formats do."""

    def write(self, sample: Sample) -> Place:
        """Append a sample; return where its image bytes are."""

    def close(self) -> None:
        """Write what ends the format; the stream stays open."""

    def neighbour_index(self) -> bytes:
        """Return the index of the shard in the form that NVIDIA DALI reads."""


class Writable(Protocol):
    """What a shard is written to."""

    def writelines(self, parts: Iterable[bytes], /) -> None:
        """Append `parts` one after another; all of them are taken."""


class ChecksumStream:
    """Passes bytes on to a stream, counting them and keeping the crc32c of all of them.

    Args:
        stream: A binary stream, at its start.
    """

    def __init__(self, stream: Writable) -> None:
        self._stream = stream
        self._crc = 0
        self.position = 0

    def write(self, *parts: bytes) -> None:
        """Append parts one after another; what belongs together is passed on together."""
        self._stream.writelines(parts)
        for part in parts:
            self._crc = google_crc32c.extend(self._crc, part)
            self.position += len(part)

    @property
    def crc32c(self) -> str:
        """Checksum of everything written so far, eight hex digits."""
        return f"{self._crc:08x}"
