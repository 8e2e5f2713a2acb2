"""Data of this machine, brought to the line's folder in the bucket before a submission: LINE/source/HASH/.

HASH is of paths and contents, and everything is create-only: a killed upload is gone on with, what is there is not sent
again, and data that changed goes elsewhere.
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
# From here on the reading is told.
_LARGE_BYTES = 10**9


@dataclass(frozen=True)
class LocalData:
    """A source on this machine.

    Attributes:
        given: `sharding.source`.
        root: Folder that the names are below.
        files: Size in bytes and crc32c by name, with `/`.
        folder: URI of the folder in the bucket.
        table: Name of the table in it; empty: the folder is the source.
    """

    given: str
    root: Path
    files: dict[str, tuple[int, str]]
    folder: str
    table: str = ""

    @property
    def source(self) -> str:
        """URI that stands for the source once all is there."""
        return storage.join(self.folder, self.table) if self.table else self.folder

    def in_words(self) -> str:
        """Say what a submission does with it."""
        num_bytes = sum(size for size, _ in self.files.values())
        return f"{self.given} ({len(self.files)} files, {num_bytes / 1e6:.1f} MB) is uploaded to {self.source}"

    def of(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the source in the bucket."""
        return config.model_copy(update={"sharding": config.sharding.model_copy(update={"source": self.source})})


def find_local_data(config: RunConfig, say: Callable[[str], None]) -> LocalData | None:
    """Return the data that a submission has to bring to the bucket; None: it is in a bucket, or not there at all.

    A folder is taken whole but for hidden files; a manifest with the files that it names. All of it is read, for its
    hash.

    Args:
        config: Resolved, with absolute paths.
        say: Told of a reading that takes a while.

    Raises:
        ConfigError: A file cannot be read, or a folder is a link to one above it.
    """
    given = config.sharding.source
    path = Path(given)
    if "://" in given or not given or not config.run.root.startswith("gs://") or not path.exists():
        return None
    if not path.is_dir() and not given.lower().endswith(MANIFEST_SUFFIXES):
        # No source at all: the rules say so.
        return None
    root, table = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        names = [table, *map(Path.as_posix, find_named_files(path, config.sharding))] if table else _list(root)
        files = _measure(root, names, say)
    except OSError as error:
        raise ConfigError(
            f"sharding.source: {error.filename} cannot be read: {error.strerror}",
            allowed="files and folders that you may read",
            todo="correct its permissions, or move it elsewhere",
        ) from None
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    return LocalData(given, root, files, storage.join(line, SOURCE_FOLDER, canonical_hash(files)), table)


def upload(data: LocalData, say: Callable[[str], None]) -> None:
    """Bring the files to the bucket that are not there.

    Args:
        data: The files, as they were when they were listed.
        say: Told of the progress.

    Raises:
        ConfigError: A file has changed since, or another object is in its place.
        StorageError: The bucket is not there, or may not be written.
        TryAgain: There was no answer.
    """
    there = {one.name: (one.size, one.crc32c) for one in storage.list_objects(data.folder)}
    missing = [name for name, file in data.files.items() if there.get(name) != file]
    if not missing:
        return
    say(f"uploads {len(missing)} of {len(data.files)} files to {data.folder}")

    def send(name: str) -> None:
        (num_bytes, crc32c), uri = data.files[name], storage.join(data.folder, name)
        try:
            with (data.root / name).open("rb") as stream:
                sent = storage.publish_stream(uri, stream, num_bytes)
        except storage.AlreadyPublished:
            raise ConfigError(
                f"{uri} holds something else than {data.root / name}",
                allowed="below this folder what `shardline submit` has uploaded",
                todo="delete that object, and run the same command again",
            ) from None
        except (OSError, ValueError) as error:
            raise _changed(data.root / name) from error
        if sent != crc32c:
            storage.delete(uri)
            raise _changed(data.root / name)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, missing))


def _measure(root: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, tuple[int, str]]:
    """Return size and crc32c of files by name."""
    sizes = [(root / name).stat().st_size for name in names]
    if sum(sizes) >= _LARGE_BYTES:
        say(f"reads {len(names)} files, {sum(sizes) / 1e9:.1f} GB, of {root} for their checksums")
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
    for place, folders, files in os.walk(root, onerror=fail, followlinks=True):
        here = Path(place)
        if here.is_symlink() and here.resolve() in (parent.resolve() for parent in here.parents):
            raise ConfigError(
                f"sharding.source: {here} is a link to a folder above it, {here.resolve()}: its files have no end",
                allowed="files and folders, and links to others",
                todo="remove the link",
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names += [(here / name).relative_to(root).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def _changed(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} was changed while it was uploaded",
        allowed="data that stays as it is until it is in the bucket",
        todo="run the same command again when nothing writes to it; what has changed goes to another folder",
    )
