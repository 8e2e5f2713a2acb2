"""Upload of local data to the line's folder in the bucket before a submission: LINE/source/HASH/.

HASH covers paths and contents, and objects are create-only: an interrupted upload resumes, existing files are skipped,
and changed data goes to a new folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.canonical import canonical_hash
from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.manifest_files import MANIFEST_SUFFIXES, find_named_files

SOURCE_FOLDER = "source"
_THREADS = 16
# Reading of more data is reported.
_LARGE_BYTES = 10**9


@dataclass(frozen=True)
class LocalData:
    """A source on this machine.

    Attributes:
        configured_source: `sharding.source`.
        root: Folder that the names are below.
        files: Size in bytes and crc32c by name, with `/`.
        folder: URI of the folder in the bucket.
        table: Name of the table in it; empty: the folder is the source.
    """

    configured_source: str
    root: Path
    files: dict[str, tuple[int, str]]
    folder: str
    table: str = ""

    @property
    def source(self) -> str:
        """URI of the source after the upload."""
        return storage.join(self.folder, self.table) if self.table else self.folder

    def describe(self) -> str:
        """Return the planned upload in one line."""
        num_bytes = sum(size for size, _ in self.files.values())
        return f"{self.configured_source} ({len(self.files)} files, {num_bytes / 1e6:.1f} MB) to {self.source}"

    def apply_to(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the source in the bucket."""
        return config.with_keys(sharding={"source": self.source})


def find_local_data(config: RunConfig, notify: Callable[[str], None]) -> LocalData | None:
    """Return the local data that a submission must upload; None: the source is in a bucket, or does not exist.

    A folder is uploaded without its hidden files; a manifest together with the files that it names. All files are read
    for the hash.

    Args:
        config: Resolved, with absolute paths.
        notify: Receives a message before a long read.

    Raises:
        ConfigError: A file cannot be read, or a folder is a link to one above it.
    """
    source = config.sharding.source
    path = Path(source)
    if "://" in source or not source or not config.run.root.startswith("gs://") or not path.exists():
        return None
    if not path.is_dir() and not source.lower().endswith(MANIFEST_SUFFIXES):
        # Not a source: the rules report it.
        return None
    root, table = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        names = [table, *map(Path.as_posix, find_named_files(path, config.sharding))] if table else _list(root)
        files = _measure(root, names, notify)
    except OSError as error:
        raise ConfigError(
            f"sharding.source: {error.filename} cannot be read: {error.strerror}",
            allowed="files and folders that you may read",
            todo="correct its permissions, or move it elsewhere",
        ) from None
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    return LocalData(source, root, files, storage.join(line, SOURCE_FOLDER, canonical_hash(files)), table)


def upload(data: LocalData, notify: Callable[[str], None]) -> None:
    """Upload the files that the bucket does not have yet.

    Args:
        data: The files, as listed by `find_local_data`.
        notify: Receives progress messages.

    Raises:
        ConfigError: A file has changed since, or another object has its name.
        StorageError: The bucket does not exist, or is not writable.
        TryAgain: No answer.
    """
    existing = {entry.name: (entry.size, entry.crc32c) for entry in storage.list_objects(data.folder)}
    missing = [name for name, file in data.files.items() if existing.get(name) != file]
    if not missing:
        return
    notify(f"uploads {len(missing)} of {len(data.files)} files to {data.folder}")

    def send(name: str) -> None:
        (num_bytes, crc32c), uri = data.files[name], storage.join(data.folder, name)
        try:
            with (data.root / name).open("rb") as stream:
                sent = storage.publish_stream(uri, stream, num_bytes)
        except storage.AlreadyPublished:
            raise ConfigError(
                f"{uri} has other content than {data.root / name}",
                allowed="in this folder only uploads of `shardline submit`",
                todo="delete that object, and run the same command again",
            ) from None
        except (OSError, ValueError) as error:
            raise _changed(data.root / name) from error
        if sent != crc32c:
            storage.delete(uri)
            raise _changed(data.root / name)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, missing))


def _measure(root: Path, names: Sequence[str], notify: Callable[[str], None]) -> dict[str, tuple[int, str]]:
    sizes = [(root / name).stat().st_size for name in names]
    if sum(sizes) >= _LARGE_BYTES:
        notify(f"reads {len(names)} files, {sum(sizes) / 1e9:.1f} GB, of {root} for their checksums")
    with ThreadPoolExecutor(_THREADS) as pool:
        checksums = pool.map(lambda name: storage.crc32c_of(storage.normalise(root / name)), names)
        return dict(zip(names, zip(sizes, checksums, strict=True), strict=True))


def _list(root: Path) -> list[str]:
    """Return the files below a folder; links are followed.

    Raises:
        ConfigError: A folder is a link to one above it.
        OSError: A folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    names: list[str] = []
    for path, folders, files in os.walk(root, onerror=fail, followlinks=True):
        folder = Path(path)
        if folder.is_symlink() and folder.resolve() in (parent.resolve() for parent in folder.parents):
            raise ConfigError(
                f"sharding.source: {folder} is a link to a folder above it, {folder.resolve()}: its files have no end",
                allowed="files and folders, and links to others",
                todo="remove the link",
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names += [(folder / name).relative_to(root).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def _changed(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} was changed while it was uploaded",
        allowed="data that does not change during the upload",
        todo="run the same command again when nothing writes to it; changed data goes to another folder",
    )
