"""From the rows of a manifest to a listing: labels to classes, paths to files that are there, splits.

Rows are sorted by path on disk (parts.sort_records): of a manifest of any length only classes, and groups with a given
split, are held in memory.
"""

from __future__ import annotations

import marshal
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contracts import storage
from contracts.config import ShardingSection
from contracts.config.fields import find_rest
from contracts.errors import DataError
from sharding.limits import MAX_CATEGORIES, MAX_NAMED, encode_name, encode_path
from sharding.sources.buckets import hash_of
from sharding.sources.fields import Fields, count_path, hash_cells, make_row_path, pack_cells, pack_file
from sharding.sources.listing import Found
from sharding.sources.names import is_ignored
from sharding.sources.parts import Names, StretchWriter, keep_records, sort_records
from sharding.sources.reference import NO_CLASS, absolute_path, remote_uri
from sharding.sources.rows import Row, normalise_path
from sharding.sources.splitting import Splitter, make_group_finder
from sharding.sources.tables import is_vertex, name_columns, read_rows


class _Item(NamedTuple):
    """A row whose path is known."""

    path: bytes
    place: str
    labels: tuple[str | int, ...]
    is_list: bool
    split: int | None
    group: bytes | None
    values: bytes = b""
    """Of named fields, those that a reference holds the cells of (marshalled): of a file its path. What is last decides
    how many rows are sorted in memory."""


# Size, generation and what the listing knows of the content of a file.
_FileInfo = tuple[int, int, bytes]


def list_manifest(section: ShardingSection, uri: str, folder: Path) -> Found:
    """List the samples that a manifest names.

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
    fields = Fields.of(section)
    writer = StretchWriter(folder, "stretch")
    items = _read_items(section, fields, uri, vertex, writer.stretch.ignored)
    checks = _Checks(section, fields, shown)
    kept = keep_records(checks.watch(map(_Item._make, sort_records(items, folder, "rows"))), folder, "rows")
    classes = checks.finish(may_mix=vertex)
    places = {name: place for place, name in enumerate(classes)}
    missing = _Missing(shown, is_plain=fields is None)
    find = _Finder(folder_uri)
    further = fields.further_files if fields is not None else ()
    found_further = [_find_further(kept, fields, name, folder_uri, folder, missing) for name in further if fields]
    for item, *more in zip(map(_Item._make, kept()), *found_further, strict=True):
        info: _FileInfo | None = (0, 0, b"")
        if fields is None or fields.file is not None:
            info = find(item.path)
            if info is None:
                missing.add(item.path, item.place)
        if info is None or None in more:
            continue
        labels = sorted({places[label] for label in item.labels}) or [NO_CLASS]
        split = checks.splitter.choose(item.path, item.group, item.split)
        record: tuple[Any, ...] = (item.path, labels[0], split, *info, tuple(labels[1:]))
        writer.add(
            record if fields is None else _add_cells(record, item, fields, dict(zip(further, more, strict=True)))
        )
    missing.check(checks.num_items)
    return Found(
        folder_uri,
        tuple(os.fsencode(str(name)) for name in classes),
        [writer.close()],
        multi_label=checks.has_lists,
        splits_given=bool(section.group_by) or checks.gives_splits,
        is_remote=not storage.is_local(folder_uri) or checks.names_objects,
        is_cut=True,
        vocabularies={name: tuple(map(_to_bytes, own.order())) for name, own in checks.further.items()},
        columns=_named_columns(section, uri),
    )


def _named_columns(section: ShardingSection, uri: str) -> dict[str, tuple[str, ...]]:
    name = find_rest(section.fields)
    return {} if name is None else {name: tuple(name_columns(section, uri).fields[name].columns)}


def _add_cells(record: tuple[Any, ...], item: _Item, fields: Fields, files: dict[str, _FileInfo]) -> tuple[Any, ...]:
    """Return the record of a sample of named fields with its other cells, and with their bytes."""
    cells: list[Any] = []
    more_bytes = 0
    for name, value in zip(fields.others, marshal.loads(item.values), strict=True):
        if name in files:
            cells.append(pack_file(value, *files[name]))
            more_bytes += files[name][0]
        elif name in fields.vocabularies:
            names = [encode_name(_to_bytes(label)) for label in value]
            cells.append(names[0] if fields.kinds[name] == "class" else names)
        else:
            cells.append(value)
    packed = pack_cells(cells)
    if fields.file is None:
        path, label, split, _, _, _, more_labels = record
        return (path, label, split, len(packed), 0, hash_cells(packed), more_labels, packed, 0)
    return (*record, packed, more_bytes + len(packed)) if packed else record


def _find_further(
    kept: Callable[[], Iterator[tuple[Any, ...]]],
    fields: Fields,
    name: str,
    folder_uri: str,
    folder: Path,
    missing: _Missing,
) -> Iterator[_FileInfo | None]:
    """Yield what is known of the files of a field, in the order of the rows; they are found in that of their paths."""
    at = fields.others.index(name)
    items = enumerate(map(_Item._make, kept()))
    paths = ((marshal.loads(item.values)[at], number, item.place) for number, item in items)
    find = _Finder(folder_uri)

    def look_up() -> Iterator[tuple[int, _FileInfo | None]]:
        for path, number, place in sort_records(paths, folder, f"{name}-paths"):
            found = find(path)
            if found is None:
                missing.add(path, f"{place}, field {name}")
            yield number, found

    for _, found in sort_records(look_up(), folder, f"{name}-files"):
        yield None if found is None else tuple(found)


class _Missing:
    """Files that rows name and that are not there."""

    def __init__(self, shown: str, *, is_plain: bool) -> None:
        self._shown, self._is_plain = shown, is_plain
        self._named: list[str] = []
        self._count = 0

    def add(self, path: bytes, place: str) -> None:
        """Take in one."""
        self._count += 1
        if self._count <= MAX_NAMED:
            self._named.append(f"{encode_path(path)} ({place})")

    def check(self, num_rows: int) -> None:
        """Raise DataError, naming the first, where there is any."""
        if not self._count:
            return
        more = f" and {self._count - MAX_NAMED} more" if self._count > MAX_NAMED else ""
        raise DataError(
            f"{self._shown} names {self._count} of {num_rows} images that are not there: {', '.join(self._named)}{more}"
            if self._is_plain
            else f"{self._shown}: {self._count} files are not there: {', '.join(self._named)}{more}",
            allowed="URIs, or paths relative to the folder of the manifest",
            todo="correct these rows, or bring the files",
        )


def _to_bytes(name: str | int) -> bytes:
    return os.fsencode(str(name))


def _read_items(
    section: ShardingSection, fields: Fields | None, uri: str, vertex: bool, ignored: Names
) -> Iterator[_Item]:
    folder_uri = uri.rpartition("/")[0]
    find_group = make_group_finder(section.group_by) if section.group_by and vertex else None
    if vertex:
        section = section.model_copy(update={"group_by": ""})
    shown = storage.display(uri)
    for row in read_rows(section, uri):
        where = f"{shown}, {row.place}"
        if fields is not None and fields.file is None:
            assert row.values is not None
            path = make_row_path(row.values)
        else:
            path = normalise_path(row.uri, folder_uri, where)
            if is_ignored(path.rpartition(b"/")[2]):
                ignored.add(path)
                continue
        group = find_group(path) if find_group else row.group
        values = b"" if fields is None else marshal.dumps(_other_values(row, fields, folder_uri, where))
        yield _Item(path, row.place, row.labels, row.is_list, row.split, group, values)


def _other_values(row: Row, fields: Fields, folder_uri: str, where: str) -> tuple[Any, ...]:
    assert row.values is not None
    return tuple(
        normalise_path(row.values[name], folder_uri, f"{where}, field {name}")
        if name in fields.further_files
        else row.values[name]
        for name in fields.others
    )


class _Checks:
    """What all rows together must be, seen in the order of their paths."""

    def __init__(self, section: ShardingSection, fields: Fields | None, shown: str) -> None:
        self.splitter = Splitter(section.splits)
        self.num_items = 0
        self.gives_splits = False
        self.names_objects = False
        self._fields = fields
        self._shown = shown
        self._labels = _Vocabulary(shown)
        names = fields.vocabularies if fields is not None else ()
        self.further = {name: _Vocabulary(f"{shown}, field {name}") for name in names}
        categories = fields.categories if fields is not None else ()
        self._categories = {name: set[str]() for name in categories}
        self._first_of_form: dict[bool, str] = {}
        self._straddling: DataError | None = None

    @property
    def has_lists(self) -> bool:
        """Whether labels are lists. Only Vertex AI's forms show a list just where there are several labels."""
        return True in self._first_of_form

    def watch(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Pass items on; repeats of a row without files get paths of their own.

        Raises:
            DataError: Two name the same file.
        """
        before: _Item | None = None
        repeats = 0
        for item in items:
            if before is not None and before.path == item.path:
                if self._fields is None or self._fields.file is not None:
                    raise DataError(
                        f"{self._shown} names {encode_path(item.path)} twice: {before.place} and {item.place}",
                        allowed="one row for each image" if self._fields is None else "one row for each file",
                        todo="remove one of the rows; an image with several labels has them in one row",
                    )
                repeats += 1
                self._take_in(item)
                yield item._replace(path=count_path(item.path, repeats))
                continue
            before, repeats = item, 0
            self._take_in(item)
            yield item

    def _take_in(self, item: _Item) -> None:
        self.num_items += 1
        self.names_objects |= item.path.startswith(b"gs://")
        self._first_of_form.setdefault(item.is_list, item.place)
        self._labels.learn(item.labels, item.place)
        if self._fields is not None:
            for name, value in zip(self._fields.others, marshal.loads(item.values), strict=True):
                if name in self.further:
                    self.further[name].learn(value, item.place)
                elif name in self._fields.further_files:
                    self.names_objects |= value.startswith(b"gs://")
                elif name in self._categories:
                    self._categories[name].add(value)
                    if len(self._categories[name]) > MAX_CATEGORIES:
                        raise _too_many(self._shown, name, value)
        if item.split is not None:
            self.gives_splits = True
            try:
                self.splitter.learn(item.group, item.split, item.place)
            except DataError as error:
                # Mistakes that concern more rows are said first.
                self._straddling = self._straddling or error

    def finish(self, *, may_mix: bool) -> list[str | int]:
        """Return the classes of the label in order.

        Raises:
            DataError: There is no row, labels are of mixed types, or a group is in two splits.
        """
        shown = self._shown
        if not self.num_items:
            raise DataError(
                f"{shown} names no {'image' if self._fields is None else 'sample'}",
                allowed="at least one row",
                todo="add rows to the manifest",
            )
        if len(self._first_of_form) > 1 and not may_mix:
            raise DataError(
                f"{shown}: labels of mixed types: a list ({self._first_of_form[True]}) and a single one "
                f"({self._first_of_form[False]})",
                allowed="lists in all rows, or in none",
                todo="write single labels as lists of one",
            )
        classes = self._labels.order()
        for further in self.further.values():
            further.order()
        # With named fields, what is enough is for the task to say.
        if len(classes) < 2 and self._fields is None:
            raise DataError(
                f"{shown} names a single class ({classes[0]})", allowed="at least two classes", todo="add rows"
            )
        if self._straddling is not None:
            raise self._straddling
        return classes


class _Vocabulary:
    """The classes that a field has in all rows."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._classes: set[str | int] = set()
        self._first_of_type: dict[type, tuple[str | int, str]] = {}

    def learn(self, labels: Iterable[str | int], place: str) -> None:
        """Take in the labels of a row."""
        for label in labels:
            self._classes.add(label)
            self._first_of_type.setdefault(type(label), (label, place))

    def order(self) -> list[str | int]:
        """Return the classes in order: numbers by value, text by its bytes.

        Raises:
            DataError: They are of mixed types.
        """
        first = self._first_of_type
        if len(first) > 1:
            (number, its_place), (text, text_place) = first[int], first[str]
            raise DataError(
                f"{self._shown}: labels of mixed types: the number {number} ({its_place}) and the text {text!r} "
                f"({text_place})",
                allowed="all labels text, or all whole numbers",
                todo="write all of them as text",
            )
        if str in first:
            return sorted(self._classes, key=lambda name: os.fsencode(str(name)))
        return sorted(self._classes)


def _too_many(shown: str, name: str, example: str) -> DataError:
    return DataError(
        f"{shown}: field {name} (category) has more than {MAX_CATEGORIES} different values, such as {example[:100]!r}: "
        "it looks like an identifier of the rows, or like free text",
        allowed=f"at most {MAX_CATEGORIES} different values in a field of kind category",
        todo=f"remove sharding.fields.{name}, or set its kind to number or text",
    )


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
