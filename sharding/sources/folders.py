"""Class folders of this machine: SOURCE/CLASS/.../FILE (layout.py says which folders are classes)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, TryAgain
from sharding.limits import encode_path
from sharding.sources.layout import Layout, Sorter, check_class_folders, find_layout, load_layout
from sharding.sources.names import is_ignored
from sharding.sources.parts import Names, Stretch, StretchWriter

# Files that are listed in this process, before others are started: less than a second.
FEW_FILES = 20_000
# Class folders of a task: many small ones are not worth a task each.
_TASKS_PER_PROCESS = 8


@dataclass(frozen=True)
class _Task:
    """Folders that one process lists, one after the other; the layout, which may be large, lies in a file."""

    root: bytes
    section: ShardingSection
    layout_path: Path
    folder: Path
    number: int


def list_layout(section: ShardingSection, uri: str, stretch: Stretch) -> Layout:
    """Return the class folders of a folder that is there.

    Args:
        section: Decides about splits.
        uri: The folder.
        stretch: Takes what lies outside of the class folders.

    Raises:
        ConfigError: `sharding.group_by` cannot hold.
        DataError: It is not readable, or its folders are no classes.
    """
    root = os.fsencode(storage.local_path(uri))
    shown = f"sharding.source {storage.display(uri)}"
    folders, files = _list_visible(root, b"", stretch.ignored)
    inner: dict[bytes, list[bytes]] = {}

    def list_inner(name: bytes) -> list[bytes]:
        # What is ignored there is met again where there are no splits.
        inner[name], _ = _list_visible(root, name, Names(0))
        return inner[name]

    layout = find_layout(section, folders, list_inner, shown)
    sorter = Sorter(layout, section, stretch)
    if layout.has_split_folders:
        for name in folders:
            _, loose = _list_visible(root, name, stretch.ignored)
            files += loose
    for path in files:
        sorter.leave_outside(path)
    check_class_folders(layout.classes, shown, f" and {len(files)} files outside of class folders" if files else "")
    return layout


def list_folders(
    section: ShardingSection,
    uri: str,
    layout: Layout,
    folder: Path,
    pool: Executor | None,
    processes: int,
) -> list[Stretch] | None:
    """List the images below class folders.

    Args:
        section: Decides about splits.
        uri: A folder that is there.
        layout: Its class folders.
        folder: Of this machine, for the stretches.
        pool: Lists; None: this process does, as long as there are few files.
        processes: Number of its processes.

    Returns:
        The stretches in order; None where there are many files and no pool.

    Raises:
        ConfigError: `sharding.group_by` is no pattern.
        DataError: A folder or file is not readable.
        TryAgain: It changed while it was listed.
    """
    root = os.fsencode(storage.local_path(uri))
    if pool is None:
        return _list_few(section, root, layout, folder)
    layout_path = folder / f"layout-{os.urandom(8).hex()}"
    layout.save(layout_path)
    units = _cut(root, layout.folders, _TASKS_PER_PROCESS * processes)
    step = max(1, -(-len(units) // (_TASKS_PER_PROCESS * processes)))
    futures = [
        pool.submit(_list_units, _Task(root, section, layout_path, folder, start), units[start : start + step])
        for start in range(0, len(units), step)
    ]
    return [future.result() for future in futures]


def _list_few(section: ShardingSection, root: bytes, layout: Layout, folder: Path) -> list[Stretch] | None:
    writer = StretchWriter(folder, "stretch-few")
    sorter = Sorter(layout, section, writer.stretch)
    files = (found for name in layout.folders for found in _walk(root, name, sorter, _identify_above(root, name)))
    # Equal paths cannot be, so what else is in a record decides nothing.
    listed = sorted(islice(files, FEW_FILES + 1))
    if len(listed) > FEW_FILES:
        return None
    for record in listed:
        _take(record, sorter, writer)
    return [writer.close()]


def _list_units(task: _Task, units: Sequence[bytes]) -> Stretch:
    """List folders, in their order."""
    writer = StretchWriter(task.folder, f"stretch-{task.number}")
    sorter = Sorter(load_layout(task.layout_path), task.section, writer.stretch)
    for unit in units:
        files = _walk(task.root, unit, sorter, _identify_above(task.root, unit))
        for record in sorted(files):
            _take(record, sorter, writer)
    return writer.close()


def _take(record: tuple[bytes, int, int], sorter: Sorter, writer: StretchWriter) -> None:
    path, size, modified_ns = record
    try:
        chosen = sorter.sort_out(path)
    except KeyError:
        raise TryAgain(f"{encode_path(path)} appeared in a new class folder while the source was listed") from None
    if chosen is not None:
        writer.add((path, *chosen, size, modified_ns, b"", ()))


def _cut(root: bytes, folders: Sequence[bytes], most: int) -> list[bytes]:
    """Return folders to list: where there are few, those in a class folder that holds nothing but folders."""
    if len(folders) >= most:
        return list(folders)
    units = []
    for name in folders:
        entries = _scan(os.path.join(root, name), root)  # noqa: PTH118
        with entries:
            inner = []
            for entry in entries:
                if is_ignored(entry.name) or _kind_of(entry, root) != "folder":
                    # Its files lie between those of its folders: one process sorts them.
                    inner = [name]
                    break
                inner.append(name + b"/" + entry.name)
        units += sorted(inner, key=lambda path: path + b"/") or [name]
    return units


def _list_visible(root: bytes, folder: bytes, ignored: Names) -> tuple[list[bytes], list[bytes]]:
    """Return the names of the folders directly below a folder, and the paths of the files; others are ignored."""
    folders, files = [], []
    prefix = folder + b"/" if folder else b""
    with _scan(os.path.join(root, folder) if folder else root, root) as entries:  # noqa: PTH118
        for entry in entries:
            if is_ignored(entry.name):
                ignored.add(prefix + entry.name + b"/" * entry.is_dir())
            elif _kind_of(entry, root) == "folder":
                folders.append(entry.name)
            else:
                files.append(prefix + entry.name)
    return sorted(folders), sorted(files)


def _walk(
    root: bytes, folder: bytes, sorter: Sorter, ancestors: tuple[tuple[int, int], ...]
) -> Iterator[tuple[bytes, int, int]]:
    """Yield (path relative to root, size, modification time in ns) of every file below a folder, in any order."""
    absolute = os.path.join(root, folder)  # noqa: PTH118
    identity = _identify(absolute, root)
    if identity in ancestors:
        raise DataError(
            f"{encode_path(folder)} in the source is a link to a folder above it",
            allowed="links that lead to no folder they are in",
            todo="remove the link",
        )
    with _scan(absolute, root) as entries:
        for entry in entries:
            path = folder + b"/" + entry.name
            if is_ignored(entry.name):
                sorter.stretch.ignored.add(path + b"/" * entry.is_dir())
            elif _kind_of(entry, root) == "folder":
                yield from _walk(root, path, sorter, (*ancestors, identity))
            else:
                found = entry.stat()
                yield path, found.st_size, found.st_mtime_ns


def _identify(absolute: bytes, root: bytes) -> tuple[int, int]:
    try:
        status = os.stat(absolute)  # noqa: PTH116
    except FileNotFoundError:
        raise _vanished(absolute, root) from None
    except OSError as error:
        raise _unreadable(absolute, root, error) from None
    return status.st_dev, status.st_ino


def _identify_above(root: bytes, folder: bytes) -> tuple[tuple[int, int], ...]:
    """Return what the folders between the source and one below it are, as `_walk` compares them."""
    names = folder.split(b"/")
    return tuple(
        _identify(os.path.join(root, *names[:depth]), root)  # noqa: PTH118
        for depth in range(1, len(names))
    )


def _scan(folder: bytes, root: bytes) -> os._ScandirIterator[bytes]:
    try:
        return os.scandir(folder)
    except FileNotFoundError:
        raise _vanished(folder, root) from None
    except OSError as error:
        raise _unreadable(folder, root, error) from None


def _kind_of(entry: os.DirEntry[bytes], root: bytes) -> str:
    try:
        mode = entry.stat().st_mode
    except FileNotFoundError as error:
        # A link that leads nowhere is a fault of the source.
        raise _unreadable(entry.path, root, error) if entry.is_symlink() else _vanished(entry.path, root) from None
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


def _vanished(path: bytes, root: bytes) -> TryAgain:
    return TryAgain(
        f"{encode_path(os.path.relpath(path, root))} vanished while the source was listed; run again when nothing "
        "writes to it"
    )
