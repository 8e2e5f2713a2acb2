"""Names of files and classes: how messages and documents write them, and which are ignored.

Paths and names are bytes: file names need not be text.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from unicodedata import category
from urllib.parse import quote, unquote_to_bytes

# In an output's folder: what a job needs until its manifest is there.
WORK_NAME = ".work"
# Names in a message; the rest is counted.
MAX_NAMED = 10
# Examples in a warning.
MAX_EXAMPLES = 3
# Encoded class names that are cached: the label of each sample is encoded.
_CACHED_NAMES = 1 << 14
# Starts the encoded name of a class that is not text.
ENCODED_PREFIX = "percent-encoded:"
# Unicode's control characters, line and paragraph separators. Joiners and uncommon spaces are text: scripts need them.
_NO_TEXT = ("Cc", "Zl", "Zp")
# Files and folders of systems and programs, in lower case: @eaDir holds Synology's thumbnails, *.db those of Windows.
IGNORED_NAMES = frozenset(
    {
        b"thumbs.db",
        b"ehthumbs.db",
        b"desktop.ini",
        b"icon\r",
        b"__macosx",
        b"@eadir",
        b"$recycle.bin",
        b"system volume information",
        b"lost+found",
    }
)


def is_ignored(name: bytes) -> bool:
    """Whether a file or folder is ignored by its name: hidden (.DS_Store, ._1.jpg, .thumbnails) or of a system."""
    return name.startswith(b".") or name.lower() in IGNORED_NAMES


def join_names(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def count_of(number: int, noun: str) -> str:
    """Return a number of things: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def encode_path(path: bytes) -> str:
    """Return a relative path as printable text: '%' and all that is not printable text are percent-encoded.

    `urllib.parse.unquote_to_bytes` is the inverse for every path, encoded or not.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "%" not in text:
        return text
    return "".join(
        char if char.isprintable() and char != "%" else quote(char.encode("utf-8", "surrogateescape")) for char in text
    )


@functools.lru_cache(_CACHED_NAMES)
def encode_name(name: bytes) -> str:
    """Return the name of a class as text, unchanged ('%' too) where it is text: programs compare it with their own.

    A name that is not UTF-8, or holds a control character or a line break, is written as `encode_path` does, after
    `ENCODED_PREFIX`; so is text that starts with that prefix, so that different names stay different.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return ENCODED_PREFIX + encode_path(name)
    if text.startswith(ENCODED_PREFIX) or any(category(char) in _NO_TEXT for char in text):
        return ENCODED_PREFIX + encode_path(name)
    return text


def decode_name(text: str) -> bytes:
    """Return the name of a class that `encode_name` has written."""
    if text.startswith(ENCODED_PREFIX):
        return unquote_to_bytes(text.removeprefix(ENCODED_PREFIX))
    return text.encode()
