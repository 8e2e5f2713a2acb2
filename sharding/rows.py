"""Parse the rows of a manifest: files, labels, split, group, and the values of further fields. Errors name the row.

Without `sharding.fields` a row has the fields image and label; the first row determines whether labels are lists.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from contracts import storage
from contracts.config import CLASS_KINDS, FILE_KINDS, SPLITS, FieldKind, ShardingSection
from contracts.errors import DataError
from sharding.fields import Fields, hash_cells, make_row_path, to_json
from sharding.file_versions import FileVersions
from sharding.folders import hash_of
from sharding.names import encode_name, encode_path, is_ignored
from sharding.reference import SourceFile, absolute_path, remote_uri
from sharding.tables import fields_of

_LIST = 'a list (in a CSV as JSON, "[""a"", ""b""]"), or with sharding.label_separator'
_ALLOWED = {
    "image": "the URI or path of an image file",
    "bytes": "the URI or path of a file",
    "text": "text",
    "class": f"text, a whole number or a boolean; several, in every row, as {_LIST}",
    "classes": f"text, whole numbers or booleans as {_LIST}",
    "number": "a finite number: with a decimal point, without separators of thousands; dates as numbers too",
    "json": "a JSON value without NaN and infinity, other than null",
}
# Errors of a cell that does not fit its kind.
_MISFITS = (ValueError, TypeError, OverflowError, RecursionError)
_TO_UTF8 = (
    "write the file as UTF-8: iconv -f windows-1252 -t utf-8 OLD.csv > NEW.csv (of a spreadsheet: save as CSV UTF-8)"
)
# Characters of a cell in a message.
_SHOWN = 100

Labels = tuple[str | int, ...]


class Row(NamedTuple):
    """One sample of a manifest."""

    place: str
    """Place of `read_table`, for errors."""
    file: SourceFile
    """The file of the reference; for a row without files, a hash and the size of its cells."""
    labels: Labels
    split: int | None
    """Index into SPLITS; None if the row has none."""
    group: bytes | None
    cells: bytes
    """Cells of the `Reference`."""
    more_bytes: int


class RowParser:
    """Parses the rows of a manifest, and collects classes, missing and ignored files.

    Args:
        section: Names of columns.
        uri: URI of the manifest, whose suffix is the format.
        files: Finds the files of the manifest.
    """

    def __init__(self, section: ShardingSection, uri: str, files: FileFinder) -> None:
        self._section, self._shown, self._files = section, storage.display(storage.normalise(section.source)), files
        self._sections = fields_of(section)
        self._is_csv, self._is_jsonl = uri.lower().endswith(".csv"), uri.lower().endswith(".jsonl")
        self.fields = Fields.of_kinds({name: field.kind for name, field in self._sections.items()})
        label_kind = self.fields.kinds.get(self.fields.label or "")
        is_open = not section.fields and not section.label_separator
        self.multi_label: bool | None = None if is_open else label_kind == "classes"
        """Whether labels are lists; None before the first row."""
        self.classes: dict[str, dict[str | int, str]] = {name: {} for name in self.fields.kinds}
        """For each field, its classes and the place of the first row with each."""
        self.missing: list[str] = []
        self.ignored: list[bytes] = []

    def parse(self, place: str, values: dict[str, Any]) -> Row | None:
        """Parse a row; None if the name of its file is ignored.

        Raises:
            DataError: A cell is empty, or does not fit its kind.
            StorageError: The scheme of a URI is not supported.
        """
        fields, section = self.fields, self._section

        def read(column: str, kind: str, allowed: str, convert: Callable[[Any], Any]) -> Any:
            cell = values.get(column)
            try:
                if cell is None or cell in ("", b""):
                    raise ValueError
                return convert(cell)
            except _MISFITS as error:
                raise _wrong(f"{self._shown}, {place}, column {column!r} ({kind})", cell, error, allowed) from None

        def read_field(name: str) -> Any:
            kind = fields.kinds[name]
            return read(self._sections[name].column, kind, _ALLOWED[kind], lambda cell: self._convert(name, kind, cell))

        path = read_field(fields.file) if fields.file is not None else b""
        if is_ignored(path.rpartition(b"/")[2]):
            self.ignored.append(path)
            return None
        cells: dict[str, Any] = {}
        num_bytes = 0
        for name in fields.cell_names:
            cell = read_field(name)
            if fields.kinds[name] in FILE_KINDS:
                file = self._find(cell, f"{place}, field {name}")
                cell = [encode_path(file.path), file.size, file.version, file.content_hash.decode()]
                num_bytes += file.size
            elif fields.kinds[name] in CLASS_KINDS:
                names = self._record_classes(name, cell, place)
                cell = names if fields.kinds[name] == "classes" else names[0]
            cells[name] = cell
        labels: Labels = ()
        if fields.label is not None:
            labels = read_field(fields.label)
            names = self._record_classes(fields.label, labels, place)
        packed = to_json(cells) if cells else b""
        if fields.file is not None:
            file = self._find(path, place)
            num_bytes += len(packed)
        else:
            label = None if fields.label is None else names if self.multi_label else names[0]
            file = SourceFile(make_row_path(to_json(label), packed), len(packed), 0, hash_cells(packed))
        split = group = None
        if values.get(section.split_column) not in (None, ""):
            allowed = f"{', '.join(SPLITS)}, or nothing for a split by hash"
            split = read(section.split_column, "split", allowed, _convert_split)
        if section.group_by:
            group = read(section.group_by, "sharding.group_by", "a group in every row", _encode)
        return Row(place, file, labels, split, group, packed, num_bytes)

    def _find(self, path: bytes, place: str) -> SourceFile:
        file = self._files.find(path)
        if file is None:
            self.missing.append(f"{encode_path(path)} ({place})")
        return file or SourceFile(path, 0, 0)

    def _record_classes(self, name: str, labels: Labels, place: str) -> list[str]:
        """Record the classes in a field of a row; return their names."""
        for label in labels:
            self.classes[name].setdefault(label, place)
        return [encode_name(os.fsencode(str(label))) for label in labels]

    def _convert(self, name: str, kind: FieldKind, cell: Any) -> Any:
        """Return the value of a cell that is not empty: path, labels, text, number or JSON value.

        Raises:
            ValueError, TypeError, OverflowError, RecursionError: It does not fit its kind.
        """
        if kind in FILE_KINDS:
            return self._files.normalise(cell)
        if kind in CLASS_KINDS:
            return self._convert_classes(name, kind, cell)
        if kind == "number":
            number = float(cell) if self._is_csv and "_" not in cell else cell
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError("no number")
            if not math.isfinite(number := float(number)):
                raise ValueError("not finite")
            return number
        if kind == "json" and isinstance(cell, str) and not self._is_jsonl:
            cell = json.loads(cell)
        if cell is None or (kind == "text" and not isinstance(cell, str)):
            raise ValueError("no text" if kind == "text" else "null")
        # Raises for a value without JSON, such as a date of a Parquet file, and for text that is not UTF-8.
        to_json(cell)
        return cell

    def _convert_classes(self, name: str, kind: FieldKind, cell: Any) -> Labels:
        separator = self._section.label_separator if kind == "classes" else None
        if isinstance(cell, str) and separator:
            cell = [part.strip() for part in cell.split(separator)]
        elif self._is_csv and not self._section.label_separator:
            cell = _parse_list(cell)
        is_list = isinstance(cell, list)
        if name == self.fields.label:
            self.multi_label = is_list if self.multi_label is None else self.multi_label
        if is_list != (self.multi_label if name == self.fields.label else kind == "classes"):
            raise ValueError("a list" if is_list else "no list")
        return tuple(map(_convert_label, cell if is_list else [cell]))


class FileFinder:
    """Finds the files that a manifest names: local ones one by one, those in a bucket by one listing per folder.

    Args:
        folder_uri: URI that relative paths are relative to.
        versions: Versions of local files.
    """

    def __init__(self, folder_uri: str, versions: FileVersions) -> None:
        self._folder_uri, self._versions = folder_uri, versions
        self._folders: dict[str, dict[str, tuple[int, int, bytes]]] = {}

    @property
    def is_remote(self) -> bool:
        """Whether any file is in a bucket."""
        return bool(self._folders) or not storage.is_local(self._folder_uri)

    def find(self, path: bytes) -> SourceFile | None:
        """Return size, version and content hash of a file; None if it is missing or unreadable."""
        uri = remote_uri(self._folder_uri, path)
        if uri is None:
            absolute = absolute_path(self._folder_uri, path)
            try:
                status = os.stat(absolute)  # noqa: PTH116 - a path of bytes
                is_file = stat.S_ISREG(status.st_mode)
                return SourceFile(path, status.st_size, self._versions.get(absolute, status)) if is_file else None
            except OSError:
                return None
        folder, _, name = uri.rpartition("/")
        if folder not in self._folders:
            entries = storage.list_objects(folder, recursive=False)
            self._folders[folder] = {info.name: (info.size, info.generation or 0, hash_of(info)) for info in entries}
        status_fields = self._folders[folder].get(name)
        return None if status_fields is None else SourceFile(path, *status_fields)

    def normalise(self, uri: str | bytes) -> bytes:
        """Return the path of a file, relative to the manifest's folder if it is below it.

        Raises:
            TypeError, ValueError: It is no text, or no valid object name.
            StorageError: The scheme of the URI is not supported.
        """
        path = os.fsencode(uri)
        if b"\0" in path:
            raise ValueError("it holds a zero byte")
        if b"://" in path:
            text = os.fsdecode(path)
            storage.normalise(text)
            if not storage.is_local(text):
                # Raises unless it is UTF-8, as names of objects are.
                text.encode()
                return path.removeprefix(self._folder_uri.encode() + b"/")
            path = os.fsencode(storage.local_path(text))
        path = posixpath.normpath(path)
        if not storage.is_local(self._folder_uri):
            path.decode()
        elif path.startswith(b"/"):
            path = path.removeprefix(os.fsencode(storage.local_path(self._folder_uri)) + b"/")
        return path


def _convert_split(name: Any) -> int:
    if name not in SPLITS:
        raise ValueError("no split")
    return SPLITS.index(name)


def _convert_label(label: Any) -> str | int:
    if isinstance(label, bool):
        # As in JSON, for all file types.
        return str(label).lower()
    if not isinstance(label, str | int) or label == "":
        raise ValueError("it holds no class")
    if b"\0" in str(label).encode():
        raise ValueError("it holds a zero byte")
    return label


def _parse_list(text: str) -> Any:
    """Parse a JSON list in a cell of a CSV, else return the text: [unsure] is a class."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[1] in "\"'" or "," in text:
            raise ValueError("a list, but not of JSON") from None
        return text


def _encode(group: Any) -> bytes:
    return os.fsencode(group if isinstance(group, bytes) else str(group))


def _wrong(cell_name: str, cell: Any, error: Exception, allowed: str) -> DataError:
    if cell is None or cell in ("", b""):
        return DataError(f"{cell_name} is empty", allowed=allowed, todo="correct the row, or leave it out")
    is_undecoded = isinstance(error, UnicodeError)
    shown = repr(cell) if len(repr(cell)) <= _SHOWN else f"{repr(cell)[:_SHOWN]}..."
    return DataError(
        f"{cell_name} is {shown} ({type(cell).__name__}): {'it is not UTF-8' if is_undecoded else error}",
        allowed=allowed,
        todo=_TO_UTF8 if is_undecoded else "correct the row, or name another column or kind",
    )
