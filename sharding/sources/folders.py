"""Class folders: SOURCE/CLASS/.../FILE.

The first folder below the source is the class, whatever is below it belongs to it. Paths are bytes, since file names
need not be text. Files directly in the source, and names that systems leave behind, are not images of any class.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from sharding.limits import encode_name, encode_path
from sharding.sources.names import is_ignored
from sharding.sources.reference import Listing, Reference
from sharding.sources.splitting import Splitter, make_group_finder

ALLOWED = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"


def list_folders(section: ShardingSection, uri: str) -> Listing:
    """List the images below class folders.

    Args:
        section: Decides about splits.
        uri: A folder that is there.

    Raises:
        ConfigError: `sharding.group_by` is no pattern.
        DataError: It is not readable, empty, or has fewer than two classes.
    """
    root = os.fsencode(storage.local_path(uri))
    shown = f"sharding.source {storage.display(uri)}"
    find_group = make_group_finder(section.group_by) if section.group_by else None
    classes = []
    ignored = []
    num_top_level_files = 0
    for entry in _scan(root, root):
        if is_ignored(entry.name):
            ignored.append(entry.name + b"/" * entry.is_dir())
        elif _kind_of(entry, root) == "folder":
            classes.append(entry.name)
        else:
            ignored.append(entry.name)
            num_top_level_files += 1
    if len(classes) < 2:
        found = ", ".join(encode_name(name) for name in classes)
        raise DataError(
            f"{shown} holds {f'a single class ({found})' if classes else 'no class folder'}"
            + (f" and {num_top_level_files} files outside of class folders" if num_top_level_files else ""),
            allowed=ALLOWED + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )
    classes.sort()
    splitter = Splitter(section.splits)
    references = []
    for label, name in enumerate(classes):
        for path, size, generation in _walk(root, name, ignored, ancestors=()):
            split = splitter.choose(path, find_group(path) if find_group else None, None)
            references.append(Reference(path, label, split, size, generation))
    if not references:
        raise DataError(
            f"{shown} is empty: {len(classes)} class folders without a file", allowed=ALLOWED, todo="add images"
        )
    references.sort()
    return Listing(uri, tuple(classes), tuple(references), tuple(sorted(ignored)))


def _walk(
    root: bytes, folder: bytes, ignored: list[bytes], ancestors: tuple[tuple[int, int], ...]
) -> Iterator[tuple[bytes, int, int]]:
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
        path = folder + b"/" + entry.name
        if is_ignored(entry.name):
            ignored.append(path + b"/" * entry.is_dir())
        elif _kind_of(entry, root) == "folder":
            yield from _walk(root, path, ignored, (*ancestors, identity))
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


def _unreadable(path: bytes, root: bytes, error: OSError) -> DataError:
    relative = encode_path(os.path.relpath(path, root))
    shown = storage.display(storage.normalise(Path(os.fsdecode(root))))
    return DataError(
        f"{shown if relative == '.' else f'{relative} in {shown}'} cannot be read: {error.strerror}",
        allowed="a source whose files and folders this user may read",
        todo="correct its permissions, repair or remove a broken link, or run as another user",
    )
