"""Types of contracts.storage, whose modules here work one scheme each: local (file://) and gcs (gs://)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

import google_crc32c

# Of a stream per step: a checksum holds the lock of the interpreter, 0.1 ms for a piece, and a thread beside it trains.
PIECE_BYTES = 512 << 10


class AlreadyPublished(Exception):
    """A create-only write met an object with other content."""


@dataclass(frozen=True)
class ObjectInfo:
    """Metadata of an object, as a listing has them."""

    name: str
    """Path relative to the URI that was listed, as plain text (not percent-encoded); of one object its own name."""
    size: int
    """Bytes."""
    generation: int | None = None
    """Version of the object (gs://): reads with it fail when the object was replaced. None where there is none."""
    crc32c: str | None = None
    """Eight hex digits; None where the storage keeps none."""
    md5: str | None = None
    """32 hex digits; None where the storage keeps none (in gs://: objects that were composed or uploaded in parts)."""
    updated_s: float = field(default=0.0, compare=False)
    """Time of the last write in seconds since 1970."""


@dataclass(frozen=True)
class ReadRequest:
    """An object to read, as a listing described it."""

    uri: str
    generation: int | None = None
    """Only this version of it (gs://)."""
    crc32c: str | None = None
    """Eight hex digits that the content must have; None compares nothing."""


def crc32c_of_stream(stream: BinaryIO, on_piece: Callable[[], object] = lambda: None) -> str:
    """Return the crc32c of a stream from its position to its end; `on_piece` is called after each piece."""
    total = 0
    while piece := stream.read(PIECE_BYTES):
        total = google_crc32c.extend(total, piece)
        on_piece()
    return f"{total:08x}"
