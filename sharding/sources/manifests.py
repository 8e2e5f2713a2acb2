"""From the rows of a manifest to a listing: labels to classes, paths to files that are there, splits.

Rows are sorted by path on disk (parts.sort_records): of a manifest of any length only classes, and groups with a given
split, are held in memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from sharding.limits import MAX_NAMED, encode_path
from sharding.sources.buckets import hash_of
from sharding.sources.listing import Found
from sharding.sources.names import is_ignored
from sharding.sources.parts import Names, StretchWriter, keep_records, sort_records
from sharding.sources.reference import absolute_path, remote_uri
from sharding.sources.rows import normalise_path
from sharding.sources.splitting import Splitter, make_group_finder
from sharding.sources.tables import is_vertex, read_rows


class _Item(NamedTuple):
    """A row whose path is known."""

    path: bytes
    place: str
    labels: tuple[str | int, ...]
    is_list: bool
    split: int | None
    group: bytes | None


def list_manifest(section: ShardingSection, uri: str, folder: Path) -> Found:
    """List the images that a manifest names.

    Args:
        section: Names of columns, and what decides about splits.
        uri: A .csv, .jsonl or .parquet file that is there.
        folder: Of this machine, for what is found.

    Raises:
        ConfigError: `sharding.group_by` is no pattern, where one is needed.
        DataError: A column is missing, a row is wrong, or a file is; rows are named.
    """
    shown = storage.display(uri)
    folder_uri = uri.rpartition("/")[0]
    vertex = is_vertex(section, uri)
    writer = StretchWriter(folder, "stretch")
    items = _read_items(section, uri, vertex, writer.stretch.ignored)
    checks = _Checks(section, shown)
    kept = keep_records(checks.watch(map(_Item._make, sort_records(items, folder, "rows"))), folder, "rows")
    classes = checks.finish(may_mix=vertex)
    places = {name: place for place, name in enumerate(classes)}
    missing: list[str] = []
    num_missing = 0
    find = _Finder(folder_uri)
    for item in map(_Item._make, kept()):
        found = find(item.path)
        if found is None:
            num_missing += 1
            if num_missing <= MAX_NAMED:
                missing.append(f"{encode_path(item.path)} ({item.place})")
            continue
        labels = sorted({places[label] for label in item.labels})
        split = checks.splitter.choose(item.path, item.group, item.split)
        writer.add((item.path, labels[0], split, *found, tuple(labels[1:])))
    if missing:
        more = f" and {num_missing - MAX_NAMED} more" if num_missing > MAX_NAMED else ""
        raise DataError(
            f"{shown} names {num_missing} of {checks.num_items} images that are not there: {', '.join(missing)}{more}",
            allowed="URIs, or paths relative to the folder of the manifest",
            todo="correct these rows, or bring the files",
        )
    return Found(
        folder_uri,
        tuple(os.fsencode(str(name)) for name in classes),
        [writer.close()],
        multi_label=checks.has_lists,
        splits_given=bool(section.group_by) or checks.gives_splits,
        is_remote=not storage.is_local(folder_uri) or checks.names_objects,
    )


def _read_items(section: ShardingSection, uri: str, vertex: bool, ignored: Names) -> Iterator[_Item]:
    folder_uri = uri.rpartition("/")[0]
    find_group = make_group_finder(section.group_by) if section.group_by and vertex else None
    if vertex:
        section = section.model_copy(update={"group_by": ""})
    shown = storage.display(uri)
    for row in read_rows(section, uri):
        path = normalise_path(row.uri, folder_uri, f"{shown}, {row.place}")
        if is_ignored(path.rpartition(b"/")[2]):
            ignored.add(path)
        else:
            group = find_group(path) if find_group else row.group
            yield _Item(path, row.place, row.labels, row.is_list, row.split, group)


class _Checks:
    """What all rows together must be, seen in the order of their paths."""

    def __init__(self, section: ShardingSection, shown: str) -> None:
        self.splitter = Splitter(section.splits)
        self.num_items = 0
        self.gives_splits = False
        self.names_objects = False
        self._shown = shown
        self._classes: set[str | int] = set()
        self._first_of_form: dict[bool, str] = {}
        self._first_of_type: dict[type, tuple[str | int, str]] = {}
        self._straddling: DataError | None = None

    @property
    def has_lists(self) -> bool:
        """Whether labels are lists. Only Vertex AI's forms show a list just where there are several labels."""
        return True in self._first_of_form

    def watch(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Pass items on.

        Raises:
            DataError: Two have the same path.
        """
        before: _Item | None = None
        for item in items:
            if before is not None and before.path == item.path:
                raise DataError(
                    f"{self._shown} names {encode_path(item.path)} twice: {before.place} and {item.place}",
                    allowed="one row for each image",
                    todo="remove one of the rows; an image with several labels has them in one row",
                )
            before = item
            self._take_in(item)
            yield item

    def _take_in(self, item: _Item) -> None:
        self.num_items += 1
        self.names_objects |= item.path.startswith(b"gs://")
        self._first_of_form.setdefault(item.is_list, item.place)
        for label in item.labels:
            self._classes.add(label)
            self._first_of_type.setdefault(type(label), (label, item.place))
        if item.split is not None:
            self.gives_splits = True
            try:
                self.splitter.learn(item.group, item.split, item.place)
            except DataError as error:
                # Mistakes that concern more rows are said first.
                self._straddling = self._straddling or error

    def finish(self, *, may_mix: bool) -> list[str | int]:
        """Return the classes in order: numbers by value, text by its bytes.

        Raises:
            DataError: There is no row, labels are of mixed types, or a group is in two splits.
        """
        shown = self._shown
        if not self.num_items:
            raise DataError(f"{shown} names no image", allowed="at least one row", todo="add rows to the manifest")
        if len(self._first_of_form) > 1 and not may_mix:
            raise DataError(
                f"{shown}: labels of mixed types: a list ({self._first_of_form[True]}) and a single one "
                f"({self._first_of_form[False]})",
                allowed="lists in all rows, or in none",
                todo="write single labels as lists of one",
            )
        first = self._first_of_type
        if len(first) > 1:
            (number, its_place), (text, text_place) = first[int], first[str]
            raise DataError(
                f"{shown}: labels of mixed types: the number {number} ({its_place}) and the text {text!r} "
                f"({text_place})",
                allowed="all labels text, or all whole numbers",
                todo="write all of them as text",
            )
        if len(self._classes) < 2:
            raise DataError(
                f"{shown} names a single class ({next(iter(self._classes))})",
                allowed="at least two classes",
                todo="add rows",
            )
        if self._straddling is not None:
            raise self._straddling
        if str in first:
            return sorted(self._classes, key=lambda name: os.fsencode(str(name)))
        return sorted(self._classes)


class _Finder:
    """Finds images, asked for in the order of their paths.

    A folder of a bucket is listed once, without those below it, instead of a request an image, and read along: both are
    sorted, so nothing of it is kept.
    """

    def __init__(self, folder_uri: str) -> None:
        self._folder_uri = folder_uri
        # Relative paths and URIs are sorted each by themselves.
        self._open: dict[bool, dict[str, _Names]] = {False: {}, True: {}}

    def __call__(self, path: bytes) -> tuple[int, int, bytes] | None:
        """Return size, generation and what the listing knows of the content; None when the image is not there."""
        uri = remote_uri(self._folder_uri, path)
        if uri is None:
            found = _find(self._folder_uri, path)
            return None if found is None else (*found, b"")
        parent, _, name = uri.rpartition("/")
        opened = self._open[path.startswith(b"gs://")]
        if parent not in opened:
            # Of folders that were left nothing comes any more.
            for passed in [one for one in opened if not uri.startswith(one + "/")]:
                del opened[passed]
            opened[parent] = _Names(parent)
        entry = opened[parent].find(name)
        return None if entry is None else (entry.size, entry.generation or 0, hash_of(entry))


class _Names:
    """The objects of one folder, in the order of their names."""

    def __init__(self, uri: str) -> None:
        self._entries = storage.list_objects(uri, recursive=False)
        self._entry = next(self._entries, None)

    def find(self, name: str) -> storage.ObjectInfo | None:
        """Return an object; each name is after the last one that was asked for."""
        while self._entry is not None and self._entry.name < name:
            self._entry = next(self._entries, None)
        return self._entry if self._entry is not None and self._entry.name == name else None


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
