"""From the rows of a manifest to a listing: labels to classes, paths to files that are there, splits."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from sharding.limits import encode_path, name_some
from sharding.sources.buckets import hash_of
from sharding.sources.names import is_ignored
from sharding.sources.reference import Listing, Reference, absolute_path, remote_uri
from sharding.sources.rows import Row, normalise_path
from sharding.sources.splitting import Splitter, make_group_finder
from sharding.sources.tables import is_vertex, read_rows


class _Item(NamedTuple):
    """A row whose path is known."""

    path: bytes
    row: Row
    group: bytes | None


def list_manifest(section: ShardingSection, uri: str) -> Listing:
    """List the images that a manifest names.

    Args:
        section: Names of columns, and what decides about splits.
        uri: A .csv, .jsonl or .parquet file that is there.

    Raises:
        ConfigError: `sharding.group_by` is no pattern, where one is needed.
        DataError: A column is missing, a row is wrong, or a file is; rows are named.
    """
    shown = storage.display(uri)
    folder = uri.rpartition("/")[0]
    vertex = is_vertex(section, uri)
    find_group = make_group_finder(section.group_by) if section.group_by and vertex else None
    rows_section = section.model_copy(update={"group_by": ""}) if vertex else section
    items = []
    ignored = []
    for row in read_rows(rows_section, uri):
        path = normalise_path(row.uri, folder, f"{shown}, {row.place}")
        if is_ignored(path.rpartition(b"/")[2]):
            ignored.append(path)
        else:
            items.append(_Item(path, row, find_group(path) if find_group else row.group))
    if not items:
        raise DataError(f"{shown} names no image", allowed="at least one row", todo="add rows to the manifest")
    items.sort(key=lambda item: item.path)
    _check_paths_differ(items, shown)

    multi_label = _check_lists(items, shown, may_mix=vertex)
    classes = _order_classes(items, shown)
    splitter = Splitter(section.splits)
    for item in items:
        if item.row.split is not None:
            splitter.learn(item.group, item.row.split, item.row.place)
    places = {name: place for place, name in enumerate(classes)}
    references = []
    missing = []
    find = _Finder(folder)
    for item in items:
        found = find(item.path)
        if found is None:
            missing.append(f"{encode_path(item.path)} ({item.row.place})")
            continue
        labels = sorted({places[label] for label in item.row.labels})
        split = splitter.choose(item.path, item.group, item.row.split)
        references.append(Reference(item.path, labels[0], split, *found, tuple(labels[1:])))
    if missing:
        raise DataError(
            f"{shown} names {len(missing)} of {len(items)} images that are not there: {name_some(missing)}",
            allowed="URIs, or paths relative to the folder of the manifest",
            todo="correct these rows, or bring the files",
        )
    return Listing(
        folder,
        tuple(os.fsencode(str(name)) for name in classes),
        tuple(references),
        tuple(sorted(set(ignored))),
        multi_label,
        splits_given=bool(section.group_by) or any(item.row.split is not None for item in items),
    )


def _check_paths_differ(items: Sequence[_Item], shown: str) -> None:
    for one, other in pairwise(items):
        if one.path == other.path:
            raise DataError(
                f"{shown} names {encode_path(one.path)} twice: {one.row.place} and {other.row.place}",
                allowed="one row for each image",
                todo="remove one of the rows; an image with several labels has them in one row",
            )


def _check_lists(items: Sequence[_Item], shown: str, *, may_mix: bool) -> bool:
    """Return whether labels are lists. Only Vertex AI's forms show a list just where there are several labels."""
    first: dict[bool, _Item] = {}
    for item in items:
        first.setdefault(item.row.is_list, item)
    if len(first) > 1 and not may_mix:
        raise DataError(
            f"{shown}: labels of mixed types: a list ({first[True].row.place}) and a single one "
            f"({first[False].row.place})",
            allowed="lists in all rows, or in none",
            todo="write single labels as lists of one",
        )
    return True in first


def _order_classes(items: Sequence[_Item], shown: str) -> list[str | int]:
    """Return the classes in order: numbers by value, text by its bytes."""
    first: dict[type, tuple[str | int, str]] = {}
    classes: set[str | int] = set()
    for item in items:
        for label in item.row.labels:
            classes.add(label)
            first.setdefault(type(label), (label, item.row.place))
    if len(first) > 1:
        (number, its_place), (text, text_place) = first[int], first[str]
        raise DataError(
            f"{shown}: labels of mixed types: the number {number} ({its_place}) and the text {text!r} ({text_place})",
            allowed="all labels text, or all whole numbers",
            todo="write all of them as text",
        )
    if len(classes) < 2:
        raise DataError(
            f"{shown} names a single class ({next(iter(classes))})", allowed="at least two classes", todo="add rows"
        )
    if str in first:
        return sorted(classes, key=lambda name: os.fsencode(str(name)))
    return sorted(classes)


class _Finder:
    """Finds images; a folder of a bucket is listed once, without those below it, instead of a request an image."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._listed: dict[str, dict[str, tuple[int, int, bytes]]] = {}

    def __call__(self, path: bytes) -> tuple[int, int, bytes] | None:
        """Return size, generation and what the listing knows of the content; None when the image is not there."""
        uri = remote_uri(self._folder, path)
        if uri is None:
            found = _find(self._folder, path)
            return None if found is None else (*found, b"")
        parent, _, name = uri.rpartition("/")
        if parent not in self._listed:
            self._listed[parent] = {
                entry.name: (entry.size, entry.generation or 0, hash_of(entry))
                for entry in storage.list_objects(parent, recursive=False)
            }
        return self._listed[parent].get(name)


def _find(folder: str, path: bytes) -> tuple[int, int] | None:
    """Return size and modification time in ns of a file, None when it is not there."""
    absolute = absolute_path(folder, path)
    try:
        status = os.stat(absolute)  # noqa: PTH116 - a path of bytes
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(
            f"{encode_path(path)} cannot be read: {error.strerror}",
            allowed="files that this user may read",
            todo="correct its permissions, or run as another user",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{encode_path(path)} is no file", allowed="files, or links to them", todo="correct the row")
    return status.st_size, status.st_mtime_ns
