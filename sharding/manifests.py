"""Manifests: the rows of a table (tables.py) as the samples of a source, sorted by path. Errors name the row.

Without `sharding.fields` a row has the fields image and label; the first row determines whether labels are lists. All
rows are in memory for sorting, about 10^7 in 4 GB, together with the names of all objects in the folders of a bucket
that they name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contracts import storage
from contracts.config import CLASS_KINDS, FILE_KINDS, SPLITS, FieldKind, ShardingSection
from contracts.config.sharding import ROW_PREFIX
from contracts.errors import DataError
from records.classes import sort_classes
from sharding.fields import Fields, to_json
from sharding.file_versions import FileVersions
from sharding.folders import hash_of
from sharding.names import encode_name, encode_path, join_names
from sharding.reference import Listing, Reference, SourceFile, absolute_path, hash_source, make_key, remote_uri
from sharding.splits import Splitter
from sharding.tables import read_table, suffix_of

_LIST = 'a list (in a CSV as JSON, "[""a"", ""b""]"), or with sharding.label_separator'
_ALLOWED = {
    "image": "the URI or path of an image file",
    "bytes": "the URI or path of a file",
    "text": "any text but none",
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


class Row(NamedTuple):
    """One sample of a manifest."""

    place: str
    """Place of `read_table`, for errors."""
    file: SourceFile
    """The file of the reference; for a row without files, a hash and the size of its cells."""
    labels: tuple[str, ...]
    split: int | None
    """Index into SPLITS; None if the row has none."""
    group: bytes | None
    cells: bytes
    """Cells of the `Reference`."""
    more_bytes: int


def list_manifest(
    section: ShardingSection, uri: str, parts: Sequence[str], versions: FileVersions, folder: Path
) -> tuple[Listing, Iterator[Reference]]:
    """Read a manifest and list its files.

    Args:
        section: Names of columns, and shares of the splits.
        uri: A .csv, .jsonl or .parquet file, or a folder of such files.
        parts: URIs of the files in a folder, in order.
        versions: Versions of local files.
        folder: Folder for the parts of the listing.

    Raises:
        DataError: A column is missing, a row is invalid, or a file is missing; the error names the rows.
    """
    shown = storage.display(uri)
    folder_uri = uri if parts else uri.rpartition("/")[0]
    parser = RowParser(section, suffix_of(parts[0] if parts else uri), FileFinder(folder_uri, versions))
    splitter = Splitter(section.splits)
    rows: list[Row] = []
    for place, values in read_table(section, uri, parts):
        row = parser.parse(place, values)
        rows.append(row)
        if row.split is not None:
            splitter.record_split(row.group, row.split, place)
    if not rows:
        raise DataError(f"{shown} has no rows", allowed="at least one row", todo="add rows to the manifest")
    if parser.missing:
        raise DataError(
            f"{shown} names files that are missing or unreadable: {join_names(parser.missing)}",
            allowed="URIs, or paths relative to the folder of the manifest",
            todo="correct these rows, or bring the files",
        )
    fields = parser.fields
    classes_of = {name: tuple(sort_classes(name.encode() for name in names)) for name, names in parser.classes.items()}
    classes = classes_of[fields.label] if fields.label is not None else ()
    # With named fields, the task checks the number of classes.
    if len(classes) < 2 and not fields.are_named:
        raise DataError(
            f"{shown} names {f'a single class ({encode_path(classes[0])})' if classes else 'no class'}",
            allowed="at least two classes",
            todo="add rows",
        )
    names_splits = any(row.split is not None for row in rows)
    rows.sort(key=lambda row: row.file.path)
    listing = Listing(
        folder_uri,
        classes,
        folder,
        section.splits,
        multi_label=bool(parser.multi_label),
        splits_given=bool(section.group_by) or names_splits,
        names_splits=names_splits,
        vocabularies={name: classes_of[name] for name in fields.vocabularies},
    )
    return listing, _make_references(listing, rows, splitter, shown, has_files=fields.file is not None)


def _make_references(
    listing: Listing, rows: Sequence[Row], splitter: Splitter, shown: str, *, has_files: bool
) -> Iterator[Reference]:
    """Yield the references of sorted rows; repeated rows without files get numbered paths."""
    places = {name: label for label, name in enumerate(listing.classes)}
    first, repeat = rows[0], 0
    for number, row in enumerate(rows):
        repeat = repeat + 1 if number and row.file.path == first.file.path else 0
        first = row if not repeat else first
        if repeat and has_files:
            raise DataError(
                f"{shown} names {encode_path(row.file.path)} twice: {first.place} and {row.place}",
                allowed="one row for each file",
                todo="remove one of the rows; an image with several labels has them in one row",
            )
        path = row.file.path + b"-%08d" % repeat if repeat else row.file.path
        labels = tuple(sorted({places[label.encode()] for label in row.labels}))
        split = splitter.choose(path, row.group, row.split)
        identity = row.file.size, row.file.version, row.file.content_hash
        source = hash_source(*identity, [listing.classes[label] for label in labels], row.cells)
        yield Reference(path, make_key(path), split, labels, *identity, source, row.cells, row.more_bytes)


# --- rows -------------------------------------------------------------------------------------------------------------


class RowParser:
    """Parses the rows of a manifest, and collects classes and missing files.

    Args:
        section: Names of columns.
        suffix: .csv, .jsonl or .parquet.
        files: Finds the files of the manifest.
    """

    def __init__(self, section: ShardingSection, suffix: str, files: FileFinder) -> None:
        self._section, self._suffix, self._files = section, suffix, files
        self._shown = storage.display(storage.normalise(section.source))
        self.fields = Fields(section)
        label_kind = self.fields.kinds.get(self.fields.label or "")
        is_open = not section.fields and not section.label_separator
        self.multi_label: bool | None = None if is_open else label_kind == "classes"
        """Whether labels are lists; None before the first row."""
        self.classes: dict[str, set[str]] = {name: set() for name in self.fields.kinds}
        """The classes of each field."""
        self.missing: list[str] = []

    def parse(self, place: str, values: dict[str, Any]) -> Row:
        """Parse a row.

        Raises:
            DataError: A cell is empty, or does not fit its kind.
            StorageError: The scheme of a URI is not supported.
        """
        fields, section = self.fields, self._section

        def read(column: str, kind: str, allowed: str, convert: Callable[[Any], Any]) -> Any:
            cell = values.get(column)
            try:
                if cell is None or (isinstance(cell, str | bytes) and not cell.strip()):
                    raise ValueError
                return convert(cell)
            except _MISFITS as error:
                raise _wrong(f"{self._shown}, {place}, column {column!r} ({kind})", cell, error, allowed) from None

        def read_field(name: str) -> Any:
            kind = fields.kinds[name]
            return read(fields.columns[name], kind, _ALLOWED[kind], lambda cell: self._convert(name, kind, cell))

        path = read_field(fields.file) if fields.file is not None else b""
        cells: dict[str, Any] = {}
        num_bytes = 0
        for name in fields.cell_names:
            cell = read_field(name)
            if fields.kinds[name] in FILE_KINDS:
                file = self._find(cell, f"{place}, field {name}")
                cell = [encode_path(file.path), file.size, file.version, file.content_hash.decode()]
                num_bytes += file.size
            elif fields.kinds[name] in CLASS_KINDS:
                names = [encode_name(label.encode()) for label in cell]
                cell = names if fields.kinds[name] == "classes" else names[0]
            cells[name] = cell
        labels: tuple[str, ...] = read_field(fields.label) if fields.label is not None else ()
        packed = to_json(cells) if cells else b""
        if fields.file is not None:
            file = self._find(path, place)
            num_bytes += len(packed)
        else:
            file = _row_file(to_json(list(labels) if self.multi_label or not labels else labels[0]), packed)
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
            number = float(cell) if self._suffix == ".csv" and "_" not in cell else cell
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError("no number")
            if not math.isfinite(number := float(number)):
                raise ValueError("not finite")
            return number
        if kind == "json" and isinstance(cell, str) and self._suffix != ".jsonl":
            cell = json.loads(cell)
        if cell is None or (kind == "text" and not isinstance(cell, str)):
            raise ValueError("no text" if kind == "text" else "null")
        # Raises for a value without JSON, such as a date of a Parquet file, and for text that is not UTF-8.
        to_json(cell)
        return cell

    def _convert_classes(self, name: str, kind: FieldKind, cell: Any) -> tuple[str, ...]:
        separator = self._section.label_separator if kind == "classes" else None
        if isinstance(cell, str) and separator:
            cell = [part.strip() for part in cell.split(separator)]
        elif self._suffix == ".csv" and not self._section.label_separator:
            cell = _parse_list(cell)
        is_list = isinstance(cell, list)
        if name == self.fields.label:
            self.multi_label = is_list if self.multi_label is None else self.multi_label
        if is_list != (self.multi_label if name == self.fields.label else kind == "classes"):
            raise ValueError("a list" if is_list else "no list")
        labels = tuple(map(_convert_label, cell if is_list else [cell]))
        self.classes[name].update(labels)
        return labels


def _row_file(label: bytes, cells: bytes) -> SourceFile:
    """Return what identifies a row without files: a hash of its label and cells, independent of all other rows."""
    digest = hashlib.blake2b(b"%d\0%b%b" % (len(label), label, cells), digest_size=16).hexdigest()
    return SourceFile(f"{ROW_PREFIX}{digest}".encode(), len(cells), 0)


def _convert_split(name: Any) -> int:
    if name not in SPLITS:
        raise ValueError("no split")
    return SPLITS.index(name)


def _convert_label(label: Any) -> str:
    if isinstance(label, bool):
        # As in JSON, for all file types.
        return str(label).lower()
    if not isinstance(label, str | int) or not str(label).strip():
        raise ValueError("it holds no class")
    if b"\0" in str(label).encode():
        raise ValueError("it holds a zero byte")
    return str(label)


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
    if cell in (None, "", b""):
        return DataError(f"{cell_name} is empty", allowed=allowed, todo="correct the row, or leave it out")
    is_undecoded = isinstance(error, UnicodeError)
    shown = repr(cell) if len(repr(cell)) <= _SHOWN else f"{repr(cell)[:_SHOWN]}..."
    return DataError(
        f"{cell_name} is {shown} ({type(cell).__name__}): {'it is not UTF-8' if is_undecoded else error}",
        allowed=allowed,
        todo=_TO_UTF8 if is_undecoded else "correct the row, or name another column or kind",
    )


# --- files ------------------------------------------------------------------------------------------------------------


class FileFinder:
    """Finds the files that a manifest names: local ones one by one, those in a bucket by one listing per folder.

    Args:
        folder_uri: URI that relative paths are relative to.
        versions: Versions of local files.
    """

    def __init__(self, folder_uri: str, versions: FileVersions) -> None:
        self._folder_uri, self._versions = folder_uri, versions
        self._folders: dict[str, dict[str, tuple[int, int, bytes]]] = {}

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
