"""What every manifest gives: rows, each with a URI, labels, and perhaps a split and a group."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from contracts import storage
from contracts.config import SPLITS
from contracts.errors import DataError

if TYPE_CHECKING:
    from sharding.sources.cells import Values

# JSON gives pairs as one character: a surrogate that is left is alone.
_HALF = re.compile("[\ud800-\udfff]")
# Characters of a label in a message.
_SHOWN = 100
# What to do about a file in another encoding.
TO_UTF8 = (
    "write the file as UTF-8: iconv -f windows-1252 -t utf-8 OLD.csv > NEW.csv (of a spreadsheet: save as CSV UTF-8)"
)


class Row(NamedTuple):
    """One sample of a manifest."""

    place: str
    """Where it stands: `line 7` or `row 7`, counted from 1."""
    uri: str | bytes
    """As it was written."""
    labels: tuple[str | int, ...]
    is_list: bool
    """Whether the labels were written as a list."""
    split: int | None
    """Place in SPLITS; None where none is given."""
    group: bytes | None
    values: Values | None = None
    """Of named fields; then `uri` and `labels` are those of the fields that have them, if any."""


def parse_labels(value: Any, separator: str | None, where: str) -> tuple[tuple[str | int, ...], bool]:
    """Return the labels in a cell, and whether they are a list; true and false are the classes of these names.

    Raises:
        DataError: The cell is empty, or holds something else than UTF-8 text, a whole number, a boolean, or a list of
            these, maybe an empty one.
    """
    is_list = isinstance(value, list | tuple)
    if isinstance(value, str) and separator:
        value, is_list = [part.strip() for part in value.split(separator)], True
    cells = tuple(value) if is_list else (value,)
    # As JSON writes them, whatever the file type.
    labels = tuple(str(one).lower() if isinstance(one, bool) else one for one in cells)
    for label in labels:
        if not isinstance(label, str | int) or label == "":
            shown = "is empty" if label is None or label == "" else f"is {label!r} ({type(label).__name__})"
            todo = "correct the row, or leave it out of the manifest"
            if isinstance(label, float):
                todo = "name the column that holds classes"
            raise DataError(
                f"{where}: the label {shown}",
                allowed="text or a whole number; several as a list, or with sharding.label_separator",
                todo=todo,
            )
        if isinstance(label, str) and is_undecoded(label):
            raise DataError(f"{where}: the label {label!r} is not UTF-8", allowed="UTF-8", todo=TO_UTF8)
        if isinstance(label, str) and b"\0" in encode_text(label, where):
            raise DataError(f"{where}: the label {label!r} holds a zero byte", allowed="text", todo="correct the row")
    return labels, is_list


def is_undecoded(text: str) -> bool:
    """Whether text holds bytes that are no UTF-8, as reading has left them."""
    return any("\udc80" <= one <= "\udcff" for one in text)


def replace_halves(text: str) -> str:
    """Return text with U+FFFD in place of each half of a character (a lone surrogate that JSON spells out)."""
    return _HALF.sub("\ufffd", text)


def encode_text(text: str | bytes, where: str) -> bytes:
    """Return text as the bytes that it was read from.

    Raises:
        DataError: It holds half a character (a lone surrogate that JSON spells out), which stands for no bytes.
    """
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: {text!r} is no text: it holds half of a character",
            allowed="text",
            todo="correct the row; JSON writes what is beyond \\uffff as a pair",
        ) from None


def parse_list_cell(text: str, where: str) -> str | list[Any]:
    """Return the list that a cell of a CSV holds as JSON, else the cell: all that it can hold is text.

    Raises:
        DataError: It looks like a list, and is none of JSON.
    """
    if not (text.startswith("[") and text.endswith("]")):
        return text
    with contextlib.suppress(ValueError, RecursionError):
        values: list[Any] = json.loads(text)
        return values
    if text[1] in "\"'" or "," in text:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise DataError(
            f"{where}: the label {shown} is a list, but not of JSON",
            allowed='["a", "b"], in a CSV written as "[""a"", ""b""]"; or sharding.label_separator',
            todo="correct the row",
        )
    return text


def parse_own_split(value: Any, where: str) -> int | None:
    """Return the split that a word stands for (its place in SPLITS), None for an empty cell.

    Raises:
        DataError: It is another word.
    """
    if value is None or value == "":
        return None
    if value not in SPLITS:
        raise DataError(
            f"{where}: unknown split {value!r}",
            allowed=f"{', '.join(SPLITS)}, or nothing for a split by hash",
            todo="correct the row",
        )
    return SPLITS.index(value)


def parse_group(value: Any, column: str, where: str) -> bytes:
    """Return the group in a cell.

    Raises:
        DataError: The cell is empty.
    """
    if value is None or value == "":
        raise DataError(
            f"{where}: column {column!r} (sharding.group_by) is empty",
            allowed="a group for every sample",
            todo="fill it in, or unset sharding.group_by",
        )
    return encode_text(value if isinstance(value, bytes) else str(value), where)


def normalise_path(uri: str | bytes, folder_uri: str, where: str) -> bytes:
    """Return the path of an image: relative to the manifest's folder where it lies below it, so that both can move.

    Raises:
        DataError: It is empty, or no object can have it as its name.
        StorageError: It is of a scheme that cannot be read.
    """
    path = encode_text(uri, where)
    if not path or b"\0" in path:
        raise DataError(f"{where}: no usable URI ({uri!r})", allowed="a URI or a path", todo="correct the row")
    if b"://" in path:
        text = os.fsdecode(path)
        storage.normalise(text)
        if not storage.is_local(text):
            _check_object_name(path, where)
            return path.removeprefix(folder_uri.encode() + b"/")
        path = os.fsencode(storage.local_path(text))
    path = posixpath.normpath(path)
    if not storage.is_local(folder_uri):
        _check_object_name(path, where)
    if path.startswith(b"/") and storage.is_local(folder_uri):
        path = path.removeprefix(os.fsencode(storage.local_path(folder_uri)) + b"/")
    return path


def _check_object_name(path: bytes, where: str) -> None:
    try:
        path.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"{where}: no object has the name {path!r}", allowed="names of objects are UTF-8", todo="correct the row"
        ) from None
