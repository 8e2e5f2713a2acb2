"""From the rows of a manifest to a listing: labels to classes, paths to files that are there, splits.

Rows are sorted by path in memory: about 10^7 rows in 4 GB.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, TryAgain, UserError
from records.classes import sort_classes
from sharding.limits import MAX_EXAMPLES, MAX_NAMED, encode_path
from sharding.sources.buckets import hash_of
from sharding.sources.cells import Values
from sharding.sources.fields import Fields, count_path, hash_cells, make_row_path, pack_file
from sharding.sources.listing import Found
from sharding.sources.names import is_ignored
from sharding.sources.parts import Names, StretchWriter
from sharding.sources.reference import NO_CLASS, absolute_path, remote_uri
from sharding.sources.rows import Row, normalise_path
from sharding.sources.splitting import Splitter
from sharding.sources.tables import find_parts, list_top, no_rows, read_rows

# A row whose path is known, as marshal knows it: path; place in the file; labels, and whether they are a list; split
# and group, where given; and of named fields the cells of the reference (where there are further files, whose sizes are
# not known yet, the numbers and the contents, of a file its path, marshalled).
_Item = tuple[Any, ...]
# Rows that are read again to name some by their lines: ten seconds or so.
_MOST_LOOKED_AT = 300_000
# Size, generation and what the listing knows of the content of a file.
_FileInfo = tuple[int, int, bytes]


def list_manifest(section: ShardingSection, uri: str, folder: Path, *, parts: Sequence[str] = ()) -> Found:
    """List the samples that a manifest names.

    Args:
        section: Names of columns, and what decides about splits.
        uri: A .csv, .jsonl or .parquet file that is there, or a folder of such files.
        folder: Of this machine, for what is found.
        parts: The URIs of these, in order.

    Raises:
        DataError: A column is missing, a row is wrong, or a file is; rows are named.
    """
    shown = storage.display(uri)
    folder_uri = uri if parts else uri.rpartition("/")[0]
    fields = Fields.of(section)
    writer = StretchWriter(folder, "stretch")
    checks = _Checks(section, fields, shown)
    # All rows are read here: what is known of all of them is known from then on.
    rows = read_rows(section, uri, parts)
    read = _read_items(rows, fields, uri, folder_uri, writer.stretch.ignored, checks)
    records = sorted(read, key=itemgetter(0))
    classes = checks.finish()
    places = {name: place for place, name in enumerate(classes)}
    missing = _Missing(shown, is_plain=fields is None)
    find = _Finder(folder_uri)
    items = list(_name_repeats(records, fields, shown))
    further = fields.further_files if fields is not None else ()
    found_further = [_find_further(items, fields, name, folder_uri, missing) for name in further if fields is not None]
    more_of_items = zip(*found_further, strict=True) if found_further else itertools.repeat(())
    for (path, place, labels, _, given_split, group, cells), more in zip(items, more_of_items, strict=False):
        label, *more_labels = sorted({places[name] for name in labels}) if labels else [NO_CLASS]
        split = checks.splitter.choose(path, group, given_split)
        if fields is not None and fields.file is None:
            own = (len(cells), 0, hash_cells(cells))
            writer.add((path, label, split, *own, tuple(more_labels), cells, 0))
            continue
        info = find(path)
        if info is None:
            missing.add(path, place)
        if info is None or None in more:
            continue
        record: tuple[Any, ...] = (path, label, split, *info, tuple(more_labels))
        if fields is not None and cells:
            more_bytes = 0
            if further:
                cells, more_bytes = _add_files(cells, fields, dict(zip(further, more, strict=True)))
            record = (*record, cells, more_bytes + len(cells))
        writer.add(record)
    missing.check(checks.num_items)
    return Found(
        folder_uri,
        tuple(os.fsencode(str(name)) for name in classes),
        [writer.close()],
        multi_label=checks.has_lists,
        splits_given=bool(section.group_by) or checks.gives_splits,
        names_splits=checks.gives_splits,
        is_remote=not storage.is_local(folder_uri) or checks.names_objects,
        is_cut=True,
        vocabularies={name: tuple(map(_to_bytes, own.order())) for name, own in checks.further.items()},
        warnings=tuple(checks.warnings),
    )


def find_places(section: ShardingSection, paths: Collection[str]) -> dict[str, str]:
    """Return file and line of rows without files, by path, for messages: references do not know them.

    Args:
        section: As the source was listed with.
        paths: Of samples; those of files are passed over, and so is what is behind the first `_MOST_LOOKED_AT` rows.
    """
    fields = Fields.of(section)
    if fields is None or fields.file is not None or not paths:
        return {}
    wanted = {path.partition("-")[0]: list[str]() for path in paths}
    # A source that changed since, or cannot be read from here, is not what the message is about.
    with contextlib.suppress(UserError, TryAgain, OSError):
        uri = storage.normalise(section.source)
        rows = read_rows(section, uri, find_parts(uri, list_top(uri)))
        for row in itertools.islice(rows, _MOST_LOOKED_AT):
            assert row.values is not None
            cells = fields.pack(row.values.numbers, row.values.contents) if fields.others else b""
            if (found := wanted.get(make_row_path(row.values.label, cells).decode())) is not None:
                found.append(row.place)
        name = uri.rpartition("/")[2]
        # Repeats are counted as `_name_repeats` does, which sees them in the order of the file.
        counted = {
            count_path(path.encode(), number).decode(): f"{name} {place}"
            for path, places in wanted.items()
            for number, place in enumerate(places)
        }
        return {path: counted[path] for path in paths if path in counted}
    return {}


def _add_files(marshalled: bytes, fields: Fields, files: dict[str, _FileInfo]) -> tuple[bytes, int]:
    """Return the cells of a sample that has further files, and the bytes of these."""
    numbers, contents = marshal.loads(marshalled)
    more_bytes = 0
    for at, name in enumerate(fields.contents):
        if name in files:
            contents[at] = pack_file(contents[at], *files[name])
            more_bytes += files[name][0]
    return fields.pack(numbers, contents), more_bytes


def _find_further(
    items: list[_Item], fields: Fields, name: str, folder_uri: str, missing: _Missing
) -> list[_FileInfo | None]:
    """Return what is known of the files of a field, in the order of the rows; they are found in that of their paths."""
    at = fields.contents.index(name)
    paths = [(marshal.loads(item[-1])[1][at], number) for number, item in enumerate(items)]
    find = _Finder(folder_uri)
    found: list[_FileInfo | None] = [None] * len(items)
    for path, number in sorted(paths):
        found[number] = find(path)
        if found[number] is None:
            missing.add(path, f"{items[number][1]}, field {name}")
    return found


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
    rows: Iterable[Row], fields: Fields | None, uri: str, folder_uri: str, ignored: Names, checks: _Checks
) -> Iterator[_Item]:
    """Yield the rows; each is shown to the checks."""
    shown = storage.display(uri)
    is_row = fields is not None and fields.file is None
    for row in rows:
        place, own_uri, labels, is_list, split, group, values = row
        cells = b""
        if values is not None and fields is not None:
            cells = _pack(values, fields, folder_uri, f"{shown}, {place}") if fields.others else b""
        if is_row and values is not None:
            path = make_row_path(values.label, cells)
        else:
            path = normalise_path(own_uri, folder_uri, f"{shown}, {place}")
            if is_ignored(path.rpartition(b"/")[2]):
                ignored.add(path)
                continue
        checks.take_in(row, path, group)
        yield path, place, labels, is_list, split, group, cells


def _pack(values: Values, fields: Fields, folder_uri: str, where: str) -> bytes:
    """Return the cells of a row; where there are further files, what makes them."""
    if not fields.further_files:
        return fields.pack(values.numbers, values.contents)
    contents = [
        normalise_path(own, folder_uri, f"{where}, field {name}") if name in fields.further_files else own
        for name, own in zip(fields.contents, values.contents, strict=True)
    ]
    return marshal.dumps((list(values.numbers), contents))


def _name_repeats(items: Iterable[_Item], fields: Fields | None, shown: str) -> Iterator[_Item]:
    """Pass items on in the order of their paths; repeats of a row without files get paths of their own.

    Raises:
        DataError: Two name the same file.
    """
    before, before_place = b"", ""
    repeats = 0
    for item in items:
        path, place, *others = item
        if path != before:
            before, before_place, repeats = path, place, 0
            yield item
            continue
        if fields is None or fields.file is not None:
            raise DataError(
                f"{shown} names {encode_path(path)} twice: {before_place} and {place}",
                allowed="one row for each image" if fields is None else "one row for each file",
                todo="remove one of the rows; an image with several labels has them in one row",
            )
        repeats += 1
        yield count_path(path, repeats), place, *others


class _Checks:
    """What all rows together must be, seen in the order of the file."""

    def __init__(self, section: ShardingSection, fields: Fields | None, shown: str) -> None:
        self.splitter = Splitter(section.splits)
        self.num_items = 0
        self.gives_splits = False
        self.names_objects = False
        self.warnings: list[str] = []
        self._most_halves = section.max_rejected_fraction
        self._halves = 0
        self._with_halves: list[str] = []
        self._fields = fields
        self._shown = shown
        self._labels = _Vocabulary(shown)
        self.further: dict[str, _Vocabulary] = {}
        self._files: list[int] = []
        if fields is not None:
            self.further = {name: _Vocabulary(f"{shown}, field {name}") for name in fields.vocabularies}
            self._files = [fields.contents.index(name) for name in fields.further_files]
        self._first_of_form: dict[bool, str] = {}
        self._straddling: DataError | None = None

    @property
    def has_lists(self) -> bool:
        """Whether labels are lists."""
        return True in self._first_of_form

    def take_in(self, row: Row, path: bytes, group: bytes | None) -> None:
        """Take in a row."""
        self.num_items += 1
        self.names_objects |= path.startswith(b"gs://")
        if row.is_list not in self._first_of_form:
            self._first_of_form[row.is_list] = row.place
        self._labels.learn(row.labels, row.place)
        if row.values is not None:
            if row.values.has_halves:
                self._halves += 1
                if self._halves <= MAX_NAMED:
                    self._with_halves.append(row.place)
            contents = row.values.contents
            for vocabulary, labels in zip(self.further.values(), row.values.further, strict=True):
                vocabulary.learn(labels, row.place)
            for at in self._files:
                self.names_objects |= os.fsencode(contents[at]).startswith(b"gs://")
        if row.split is not None:
            self.gives_splits = True
            try:
                self.splitter.learn(group, row.split, row.place)
            except DataError as error:
                # Mistakes that concern more rows are said first.
                self._straddling = self._straddling or error

    def finish(self) -> list[str | int]:
        """Return the classes of the label in order.

        Raises:
            DataError: There is no row, labels are of mixed types, or a group is in two splits.
        """
        shown = self._shown
        if not self.num_items:
            raise no_rows(shown, is_plain=self._fields is None)
        self._check_halves()
        if len(self._first_of_form) > 1:
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
                f"{shown} names {f'a single class ({classes[0]})' if classes else 'no class'}",
                allowed="at least two classes",
                todo="add rows",
            )
        if self._straddling is not None:
            raise self._straddling
        return classes

    def _check_halves(self) -> None:
        """Warn of rows in which halves of characters were replaced.

        Raises:
            DataError: They are more than the share that may be rejected.
        """
        if not self._halves:
            return
        found = f"{self._halves} of {self.num_items} rows hold half of a character"
        if self._halves > self._most_halves * self.num_items:
            more = f" and {self._halves - MAX_NAMED} more" if self._halves > MAX_NAMED else ""
            raise DataError(
                f"{self._shown}: {found}: {', '.join(self._with_halves)}{more}",
                allowed=f"at most a share of {self._most_halves:g} (sharding.max_rejected_fraction), by U+FFFD",
                todo="correct these rows (JSON writes what is beyond \\uffff as a pair), or raise "
                "sharding.max_rejected_fraction",
            )
        shown = self._with_halves[:MAX_EXAMPLES]
        more = f" and {self._halves - len(shown)} more" if self._halves > len(shown) else ""
        self.warnings.append(f"{found}, replaced by U+FFFD: {', '.join(shown)}{more}")


class _Vocabulary:
    """The classes that a field has in all rows."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._classes: set[str | int] = set()
        self._last: tuple[str | int, ...] = ()
        self._first_of_type: dict[type, tuple[str | int, str]] = {}

    def learn(self, labels: tuple[str | int, ...], place: str) -> None:
        """Take in the labels of a row."""
        if labels == self._last:
            return
        self._last = labels
        for label in labels:
            self._classes.add(label)
            if type(label) not in self._first_of_type:
                self._first_of_type[type(label)] = (label, place)

    def order(self) -> list[str | int]:
        """Return the classes in order.

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
        names: dict[bytes, str | int] = {os.fsencode(str(name)): name for name in self._classes}
        return [names[name] for name in sort_classes(names)]


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
