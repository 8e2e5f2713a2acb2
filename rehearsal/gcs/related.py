"""The body of a multipart upload: an object's resource, then its media as a stream.

https://cloud.google.com/storage/docs/uploading-objects#uploading-an-object (multipart/related, RFC 2387). gcsfs ends
its lines with a line feed alone, and Cloud Storage takes that: the first line decides.
"""

from __future__ import annotations

import re
from typing import Any

from rehearsal.doors.http_messages import Request
from rehearsal.gcs.messages import ApiError, parse_object

_BLOCK_BYTES = 64 << 10
# Of the resource and the headers of both parts.
_MAX_HEAD_BYTES = 1 << 20
# Behind the last boundary: a line's end, or an epilogue as short.
_EPILOGUE_BYTES = 64


class RelatedBody:
    """A multipart/related body, of which `read` gives the media.

    Attributes:
        resource: The first part.
        content_type: Of the media.

    Raises:
        ApiError: 400; it is of another form.
    """

    def __init__(self, request: Request) -> None:
        match = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
        if match is None:
            raise ApiError(400, "Missing boundary in a multipart request")
        self._body, self._held, self._is_whole = request.body, b"", False
        delimiter = b"--" + match[1].encode()
        first = self._find(delimiter, 0) + len(delimiter)
        line_end = self._find(b"\n", first)
        newline = b"\r\n" if self._held[first : line_end + 1] == b"\r\n" else b"\n"
        second = self._find(newline + delimiter, first)
        text = self._held[first:second].partition(newline * 2)[2]
        self.resource: dict[str, Any] = parse_object(text) if text.strip() else {}
        start = second + len(newline + delimiter)
        blank = self._find(newline * 2, start)
        found = re.search(rb"(?im)^content-type:\s*([^\r\n]+)", self._held[start:blank])
        self.content_type = found[1].decode("latin-1").strip() if found else "application/octet-stream"
        self._held = self._held[blank + len(newline * 2) :]
        self._end = newline + delimiter + b"--"

    def _find(self, pattern: bytes, start: int) -> int:
        """Return where a pattern is in what was read, reading on as far as it takes."""
        while (at := self._held.find(pattern, start)) < 0:
            piece = self._body.read(_BLOCK_BYTES) if len(self._held) < _MAX_HEAD_BYTES else b""
            if not piece:
                raise ApiError(400, "Malformed multipart body")
            self._held += piece
        return at

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes of the media, all that is left when it is negative, b"" at its end."""
        kept = len(self._end) + _EPILOGUE_BYTES
        while not self._is_whole and (size < 0 or len(self._held) < size + kept):
            piece = self._body.read(max(size, _BLOCK_BYTES))
            self._held += piece
            if not piece:
                # The last boundary ends the media.
                end = self._held.rfind(self._end)
                if end < 0:
                    raise ApiError(400, "Malformed multipart body")
                self._held, self._is_whole = self._held[:end], True
        count = len(self._held) if size < 0 else min(size, len(self._held) - (0 if self._is_whole else kept))
        data, self._held = self._held[:count], self._held[count:]
        return data
