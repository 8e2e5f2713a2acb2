"""The body of a request on the wire: counted, slowed down, and cut off where a rule says so."""

from __future__ import annotations

import re
import time
from io import BufferedIOBase


class Reset(Exception):
    """The connection ends here, without an answer."""


class RequestBody:
    """The body of the request on the wire: counted, slowed down, and cut off where a rule says so."""

    def __init__(self, stream: BufferedIOBase, length: int | None) -> None:
        self._stream = stream
        self._left = length
        """None while a chunked body goes on."""
        self._chunk_left = 0
        self.num_read = 0
        self.bytes_per_s: float | None = None
        self.reset_at: int | None = None
        self._began = time.monotonic()

    @property
    def left(self) -> int | None:
        """Bytes still to come; None when the client did not say."""
        return self._left

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes."""
        if self.reset_at is not None:
            if self.num_read >= self.reset_at:
                raise Reset
            room = self.reset_at - self.num_read
            size = room if size < 0 else min(size, room)
        if size < 0:
            pieces = []
            while piece := self.read(1 << 20):
                pieces.append(piece)
            return b"".join(pieces)
        data = self._read_chunked(size) if self._left is None else self._stream.read(min(size, self._left))
        if self._left is not None:
            if not data and size and self._left:
                raise ConnectionError("the client left in the middle of a body")
            self._left -= len(data)
        self.num_read += len(data)
        self.keep_pace()
        return data

    def keep_pace(self) -> None:
        """Wait until what was read so far may have come."""
        if self.bytes_per_s is not None:
            time.sleep(max(0.0, self.num_read / self.bytes_per_s - (time.monotonic() - self._began)))

    def _read_chunked(self, size: int) -> bytes:
        if not self._chunk_left:
            line = self._stream.readline(1024)
            if not line:
                raise ConnectionError("the client left in the middle of a body")
            size_text = line.split(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size_text):
                raise ConnectionError("no chunk starts here")
            self._chunk_left = int(size_text, 16)
            if not self._chunk_left:
                while self._stream.readline(1024).strip():
                    pass
                self._left = 0
                return b""
        data = self._stream.read(min(size, self._chunk_left))
        if not data and size:
            # An end in the middle of a chunk is not the end of the body.
            raise ConnectionError("the client left in the middle of a chunk")
        self._chunk_left -= len(data)
        if not self._chunk_left:
            self._stream.readline(8)
        return data
