"""Data of this machine, brought to the line's folder in the bucket before a submission.

    LINE/source/HASH/      the files, as they lie here
    LINE/source/HASH.json  their sizes and hashes, written last

HASH is of paths and contents, and everything is create-only: a killed upload is gone on with, what is there is not sent
again, and data that changed goes elsewhere. `shardline clean` deletes what no kept run names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.manifest_files import find_named_files
from pipelines.rules.preflight import MANIFEST_SUFFIXES
from pipelines.submission.file_hashes import LocalFile, forget, measure_files

SOURCE_FOLDER = "source"
_SENDERS = 16


@dataclass(frozen=True)
class LocalData:
    """A source on this machine."""

    given: str
    """sharding.source."""
    root: Path
    """Folder that the names are below."""
    files: dict[str, LocalFile]
    """By name below the root, with `/`."""
    folder: str
    """URI of the folder in the bucket."""
    table: str = ""
    """Name of the table in it; empty: the folder is the source."""

    @property
    def source(self) -> str:
        """URI that stands for the source once all is there."""
        return storage.join(self.folder, self.table) if self.table else self.folder

    @property
    def words(self) -> str:
        """What a submission does with it."""
        size = f"{len(self.files)} files, {self.num_bytes / 1e6:.1f} MB"
        return f"`submit` uploads {self.given} ({size}) to {self.source}"

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files.values())

    @property
    def manifest(self) -> bytes:
        """What is at LINE/source/HASH.json."""
        return _describe(self.files)

    @property
    def is_there(self) -> bool:
        """Whether an upload of it has ended."""
        return storage.exists(f"{self.folder}.json")

    def of(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the source in the bucket."""
        return config.model_copy(update={"sharding": config.sharding.model_copy(update={"source": self.source})})


def find_local_data(config: RunConfig, say: Callable[[str], None]) -> LocalData | None:
    """Return the data that a submission has to bring to the bucket; None: it is in a bucket, or not there at all.

    A folder is taken whole but for hidden files; a manifest with the files that it names. All of it is read, for its
    hash, but what has not changed since it was read last.

    Args:
        config: Resolved, with absolute paths.
        say: Told of a reading that takes a while.

    Raises:
        ConfigError: A file cannot be read, or a folder is a link to one above it.
    """
    given = config.sharding.source
    if "://" in given or not given or not config.run.root.startswith("gs://") or not Path(given).exists():
        return None
    path = Path(given)
    if not path.is_dir() and not given.lower().endswith(MANIFEST_SUFFIXES):
        # No source at all: the rules say so.
        return None
    root, table = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        named = (
            [table, *(name.as_posix() for name in find_named_files(path, config.sharding))] if table else _list(root)
        )
        files = measure_files(root, named, say)
    except OSError as error:
        raise ConfigError(
            f"sharding.source: {error.filename} cannot be read: {error.strerror}",
            allowed="files and folders that you may read",
            todo="correct its permissions, or move it elsewhere",
        ) from None
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    digest = hashlib.sha256(_describe(files)).hexdigest()
    return LocalData(given, root, files, storage.join(line, SOURCE_FOLDER, digest), table)


def upload(data: LocalData, say: Callable[[str], None]) -> None:
    """Bring the files to the bucket, unless they are there.

    Args:
        data: The files, as they were when they were listed.
        say: Told of the progress.

    Raises:
        ConfigError: A file has changed since.
        StorageError: The bucket is not there, or may not be written.
        TryAgain: There was no answer.
    """
    if data.is_there:
        return
    there = {one.name: (one.size, one.crc32c) for one in storage.list_objects(data.folder)}
    missing = [name for name, file in data.files.items() if there.get(name) != (file.num_bytes, file.crc32c)]
    say(f"uploads {len(missing)} files to {data.folder}")

    def send(name: str) -> None:
        file, uri = data.files[name], storage.join(data.folder, name)
        try:
            with (data.root / name).open("rb") as stream:
                sent = storage.publish_stream(uri, stream, file.num_bytes)
        except storage.AlreadyPublished:
            raise ConfigError(
                f"{uri} holds something else than {data.root / name}",
                allowed="below this folder what `shardline submit` has uploaded",
                todo="delete that object, and run the same command again",
            ) from None
        except (OSError, ValueError) as error:
            raise _changed(data.root, name) from error
        if sent != file.crc32c:
            storage.delete(uri)
            raise _changed(data.root, name)

    with ThreadPoolExecutor(_SENDERS) as pool:
        list(pool.map(send, missing))
    storage.publish(f"{data.folder}.json", data.manifest)


def _list(root: Path) -> list[str]:
    """Return the files below a folder; links are followed.

    Raises:
        ConfigError: A folder is a link to one above it.
        OSError: A folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    names: list[str] = []
    # Of each folder, what it and those above it really are.
    above = {str(root): [os.path.realpath(root)]}
    for place, folders, files in os.walk(root, onerror=fail, followlinks=True):
        own, below = above.pop(place), Path(place).relative_to(root)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (os.path.join(place, name) for name in folders):  # noqa: PTH118
            real = os.path.realpath(path)
            if real in own:
                raise ConfigError(
                    f"sharding.source: {path} is a link to a folder above it, {real}: its files would have no end",
                    allowed="files and folders, and links to others",
                    todo="remove the link",
                )
            above[path] = [*own, real]
        names += [(below / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def _describe(files: dict[str, LocalFile]) -> bytes:
    values = {name: {"bytes": file.num_bytes, "sha256": file.sha256} for name, file in files.items()}
    return (json.dumps({"files": values}, sort_keys=True, indent=1) + "\n").encode()


def _changed(root: Path, name: str) -> ConfigError:
    # Whatever the times of the file say.
    forget(root)
    return ConfigError(
        f"{root / name} was changed while it was uploaded",
        allowed="data that stays as it is until it is in the bucket",
        todo="run the same command again when nothing writes to it; what has changed goes to another folder",
    )
