"""Files of a run that the server hands on: logs in pieces.

Which files there are is the run's word (`RunView`), so none is believed: what lies outside of the root, by its name or
by a link, does not exist here, and what is no ordinary file neither (a pipe would be waited for, a device never ends).
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from inspection.ui.addresses import NotFoundError

# Of a log at a time: some thousand lines, which a browser shows at once.
WINDOW_BYTES = 256 << 10
# A line that is longer is cut at its start.
_LINE_BYTES = 16 << 10
# Of a log on the page of its run.
_TAIL_BYTES, _TAIL_LINES = 4 << 10, 20
_COLOUR = re.compile("\x1b\\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Piece:
    """Part of a file."""

    content: bytes
    start: int
    """Of its first byte."""
    size: int
    """Of the whole file, in bytes."""

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.start + len(self.content)


def read_piece(
    root: str, uri: str, *, start: int | None = None, end: int | None = None, most: int = WINDOW_BYTES
) -> Piece:
    """Return the lines from one byte on, or up to one; very long ones are cut.

    Pieces leave nothing out: `start` at the end of another is what follows it, `end` at its start what comes before.

    Args:
        root: URI of the folder that files may be of.
        uri: The file.
        start: The first byte; `end` does not count then.
        end: Behind the last byte; None: the file's end.
        most: Bytes that are read.

    Raises:
        NotFoundError: It is not there, not below the root, or no ordinary file.
    """
    with _File(root, uri) as file:
        if start is not None:
            start = min(max(start, 0), file.size)
            content = file.read(start, min(most, file.size - start))
            whole = content.rfind(b"\n") + 1
            is_last = start + len(content) == file.size
            return Piece(content if is_last or not whole else content[:whole], start, file.size)
        end = file.size if end is None else min(max(end, 0), file.size)
        start = max(0, end - most)
        if start == 0:
            return Piece(file.read(0, end), 0, file.size)
        content = file.read(start - 1, end - start + 1)
    # The byte before tells whether a line begins here.
    cut = content.find(b"\n", 0, min(len(content) - 1, _LINE_BYTES)) + 1 or 1
    return Piece(content[cut:], start - 1 + cut, file.size)


def plain_text(piece: Piece) -> str:
    """Return part of a log as text: colours of a terminal left out, progress bars as lines."""
    return _COLOUR.sub("", piece.content.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")


def read_tail(root: str, uri: str) -> str:
    """Return the last lines of a log, 4 KiB at most, as text; empty: it says nothing, or cannot be read."""
    try:
        text = plain_text(read_piece(root, uri, most=_TAIL_BYTES))
    except (NotFoundError, OSError):
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-_TAIL_LINES:])


class _File:
    """A file below the root, open."""

    def __init__(self, root: str, uri: str) -> None:
        self._uri = uri
        self._descriptor = -1
        try:
            if storage.is_local(root):
                self._descriptor = _open(root, uri)
                self.size = os.fstat(self._descriptor).st_size
            elif uri.startswith(root + "/"):
                self.size = storage.size(uri)
            else:
                raise NotFoundError(f"{uri} is not below {root}")
        except (OSError, ValueError) as error:
            raise NotFoundError(f"{uri} cannot be read: {error}") from None

    def read(self, start: int, length: int) -> bytes:
        if self._descriptor < 0:
            return storage.read_range(self._uri, start, length) if length else b""
        return os.pread(self._descriptor, length, start)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _open(root: str, uri: str) -> int:
    """Open a local file without waiting, and make sure that it is an ordinary one below the root."""
    if not storage.is_local(uri):
        raise NotFoundError(f"{uri} is not below {storage.display(root)}")
    top = Path(os.path.realpath(storage.local_path(root)))
    path = Path(os.path.realpath(storage.local_path(uri)))
    if not path.is_relative_to(top):
        raise NotFoundError(f"{storage.display(uri)} is not below {storage.display(root)}")
    # No link any more, and none that somebody has put there meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFoundError(f"{storage.display(uri)} is no ordinary file")
    return descriptor
