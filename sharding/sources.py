"""What is to be sharded: a deterministic listing of the images in class folders, checked before anything is spent.

SOURCE/CLASS/.../FILE: the first folder below the source is the class, whatever is below it belongs to it. Paths are
bytes, since file names need not be text. Files directly in the source, and names that start with a dot or that systems
leave behind, are not images of any class and are left out. Nothing here reads the content of a file.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contracts import storage
from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.limits import check_training_classes, encode_path, name_some
from sharding.plan import choose_split

# Left behind by file managers; everything that starts with a dot (.DS_Store, ._*, .ipynb_checkpoints) as well.
IGNORED_NAMES = frozenset({b"Thumbs.db", b"desktop.ini", b"__MACOSX"})

_ALLOWED = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"


class Reference(NamedTuple):
    """One file of the source: what Beam shuffles instead of its content."""

    path: bytes
    """Relative to the source."""
    label: int
    """Place of its class in the sorted list of classes."""
    split: int
    """Place in contracts.config.SPLITS."""
    size: int
    """Bytes."""
    generation: int
    """Changes when the file does: its modification time in ns."""


@dataclass(frozen=True)
class Listing:
    """All files of a source."""

    uri: str
    classes: tuple[bytes, ...]
    """Folder names, sorted; a label is a place here."""
    references: tuple[Reference, ...]
    """Sorted by path."""

    @property
    def sha256(self) -> str:
        """Hash over path, size and generation of every file, and over the classes."""
        total = hashlib.sha256()
        for name in self.classes:
            total.update(b"%b\0" % name)
        for reference in self.references:
            # No path holds a zero byte: fields and lines cannot run into each other.
            total.update(b"\0%b\0%d\0%d\0" % (reference.path, reference.size, reference.generation))
        return total.hexdigest()

    def count_by_class(self, split: int) -> list[int]:
        """Return the number of files of each class in a split."""
        counts = [0] * len(self.classes)
        for reference in self.references:
            if reference.split == split:
                counts[reference.label] += 1
        return counts


def list_source(section: ShardingSection) -> Listing:
    """List the images of `sharding.source`.

    Raises:
        ConfigError: No source is set.
        DataError: It is missing, no folder, not readable, empty, has fewer than two classes, or a class has no image
            in the training split.
        StorageError: It is of a scheme that cannot be read.
    """
    if not section.source.strip():
        raise ConfigError(
            "sharding.source is not set", allowed=_ALLOWED, todo="set sharding.source to the folder of your images"
        )
    uri = storage.normalise(section.source)
    root = os.fsencode(storage.local_path(uri))
    shown = f"sharding.source {storage.display(uri)}"
    if not os.path.exists(root):  # noqa: PTH110 - a path of bytes
        raise DataError(f"{shown} does not exist", allowed=_ALLOWED, todo="check the path")
    if not os.path.isdir(root):  # noqa: PTH112
        raise DataError(f"{shown} is a file, not a folder", allowed=_ALLOWED, todo="give the folder above the classes")

    classes = []
    num_top_level_files = 0
    for entry in _scan(root, root):
        if _is_ignored(entry.name):
            continue
        if _kind_of(entry, root) == "folder":
            classes.append(entry.name)
        else:
            num_top_level_files += 1
    if len(classes) < 2:
        found = ", ".join(encode_path(name) for name in classes)
        raise DataError(
            f"{shown} holds {f'a single class ({found})' if classes else 'no class folder'}"
            + (f" and {num_top_level_files} files outside of class folders" if num_top_level_files else ""),
            allowed=_ALLOWED + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )
    classes.sort()
    references = [
        Reference(path, label, choose_split(path, section.splits), size, generation)
        for label, name in enumerate(classes)
        for path, size, generation in _walk(root, name, ancestors=())
    ]
    if not references:
        raise DataError(
            f"{shown} is empty: {len(classes)} class folders without a file", allowed=_ALLOWED, todo="add images"
        )
    references.sort()
    listing = Listing(uri, tuple(classes), tuple(references))
    check_training_classes(listing.classes, listing.count_by_class(0), shown)
    return listing


def describe_gaps(listing: Listing, fractions: SplitFractions) -> list[str]:
    """Return a warning for each thing that is allowed but probably not meant."""
    warnings = []
    for split, name in enumerate(SPLITS):
        if split == 0 or getattr(fractions, name) == 0:
            continue
        absent = [
            encode_path(listing.classes[label])
            for label, count in enumerate(listing.count_by_class(split))
            if count == 0
        ]
        if absent:
            warnings.append(f"warning: the {name} split has no image of class {name_some(absent)}")
    by_lower: dict[bytes, bytes] = {}
    for class_name in listing.classes:
        other = by_lower.setdefault(class_name.lower(), class_name)
        if other != class_name:
            names = f"{encode_path(other)} and {encode_path(class_name)}"
            warnings.append(f"warning: classes {names} differ only in upper and lower case")
    return warnings


def absolute_path(source_uri: str, path: bytes) -> bytes:
    """Return the path of a file of the source, in bytes."""
    return os.path.join(os.fsencode(storage.local_path(source_uri)), path)  # noqa: PTH118


def _walk(root: bytes, folder: bytes, ancestors: tuple[tuple[int, int], ...]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (path relative to root, size, modification time in ns) of every file below a folder."""
    absolute = os.path.join(root, folder)  # noqa: PTH118
    try:
        status = os.stat(absolute)  # noqa: PTH116
    except OSError as error:
        raise _unreadable(absolute, root, error) from None
    identity = (status.st_dev, status.st_ino)
    if identity in ancestors:
        raise DataError(
            f"{encode_path(folder)} in the source is a link to a folder above it",
            allowed="links that lead to no folder they are in",
            todo="remove the link",
        )
    for entry in _scan(absolute, root):
        if _is_ignored(entry.name):
            continue
        path = folder + b"/" + entry.name
        if _kind_of(entry, root) == "folder":
            yield from _walk(root, path, (*ancestors, identity))
        else:
            found = entry.stat()
            yield path, found.st_size, found.st_mtime_ns


def _scan(folder: bytes, root: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, root, error) from None


def _kind_of(entry: os.DirEntry[bytes], root: bytes) -> str:
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        raise _unreadable(entry.path, root, error) from None
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISREG(mode):
        return "file"
    raise DataError(
        f"{encode_path(os.path.relpath(entry.path, root))} in the source is neither a file nor a folder",
        allowed="files and folders, or links to them",
        todo="remove it from the source",
    )


def _is_ignored(name: bytes) -> bool:
    return name.startswith(b".") or name in IGNORED_NAMES


def _unreadable(path: bytes, root: bytes, error: OSError) -> DataError:
    relative = encode_path(os.path.relpath(path, root))
    shown = storage.display(storage.normalise(Path(os.fsdecode(root))))
    return DataError(
        f"{shown if relative == '.' else f'{relative} in {shown}'} cannot be read: {error.strerror}",
        allowed="a source whose files and folders this user may read",
        todo="correct its permissions, repair or remove a broken link, or run as another user",
    )
