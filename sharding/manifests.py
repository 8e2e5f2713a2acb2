"""Manifests: convert the rows of a table to the samples of a source, sorted by path.

All rows are in memory for sorting, about 10^7 in 4 GB, together with the names of all objects in the folders of a
bucket that they name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from records.classes import sort_classes
from sharding.fields import count_path
from sharding.file_versions import FileVersions
from sharding.names import MAX_EXAMPLES, encode_path, join_names
from sharding.reference import Listing, Reference, hash_source, make_key
from sharding.rows import FileFinder, Row, RowParser
from sharding.splits import Splitter
from sharding.tables import read_table


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
    files = FileFinder(folder_uri, versions)
    parser = RowParser(section, parts[0] if parts else uri, files)
    splitter = Splitter(section.splits)
    rows: list[Row] = []
    for place, values in read_table(section, uri, parts):
        row = parser.parse(place, values)
        if row is None:
            continue
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
    vocabularies = {name: _order_classes(parser.classes[name], shown, name) for name in fields.vocabularies}
    classes = _order_classes(parser.classes[fields.label], shown, fields.label) if fields.label is not None else ()
    # With named fields, the task checks the number of classes.
    if len(classes) < 2 and not section.fields:
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
        is_remote=files.is_remote,
        vocabularies=vocabularies,
    )
    for path in parser.ignored:
        listing.ignore(path)
    return listing, _make_references(listing, rows, splitter, shown, has_files=fields.file is not None)


def _make_references(
    listing: Listing, rows: Sequence[Row], splitter: Splitter, shown: str, *, has_files: bool
) -> Iterator[Reference]:
    """Yield the references of sorted rows; repeated rows without files get numbered paths and a warning."""
    places = {name: label for label, name in enumerate(listing.classes)}
    first, repeat, repeats = rows[0], 0, []
    for number, row in enumerate(rows):
        repeat = repeat + 1 if number and row.file.path == first.file.path else 0
        first = row if not repeat else first
        if repeat and has_files:
            raise DataError(
                f"{shown} names {encode_path(row.file.path)} twice: {first.place} and {row.place}",
                allowed="one row for each file",
                todo="remove one of the rows; an image with several labels has them in one row",
            )
        if repeat:
            repeats.append(f"{first.place} = {row.place}")
        path = count_path(row.file.path, repeat)
        labels = tuple(sorted({places[str(label).encode()] for label in row.labels}))
        split = splitter.choose(path, row.group, row.split)
        identity = row.file.size, row.file.version, row.file.content_hash
        source = hash_source(*identity, [listing.classes[label] for label in labels], row.cells)
        yield Reference(path, make_key(path), split, labels, *identity, source, row.cells, row.more_bytes)
    if repeats:
        listing.warnings.append(f"equal rows: {join_names(repeats, MAX_EXAMPLES)}")


def _order_classes(places: Mapping[str | int, str], shown: str, field: str) -> tuple[bytes, ...]:
    """Return the classes of a field in order.

    Args:
        places: Each class, and the place of the first row with it.
        shown: The manifest.
        field: Name of the field.

    Raises:
        DataError: Labels of mixed types.
    """
    numbers = [label for label in places if isinstance(label, int)]
    texts = [label for label in places if isinstance(label, str)]
    if numbers and texts:
        raise DataError(
            f"{shown}, field {field}: labels of mixed types: the number {numbers[0]} ({places[numbers[0]]}) and the "
            f"text {texts[0]!r} ({places[texts[0]]})",
            allowed="all labels text, or all whole numbers",
            todo="write all of them as text",
        )
    return tuple(sort_classes(str(label).encode() for label in places))
