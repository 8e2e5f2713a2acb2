"""Where the source of shards lies: a file beside their manifest, which itself holds nothing of a place.

The export asks its predict.py about the source's own files of images that sharding changed. The file is no part of the
result: it may be missing, and the source may have moved.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

from contracts import storage
from contracts.errors import StorageError

SOURCE_NAME = "source.txt"


def write_source(shards_uri: str, source_uri: str) -> None:
    """Write down the folder that the paths of samples are relative to."""
    storage.replace(storage.join(shards_uri, SOURCE_NAME), source_uri.encode())


def read_source(shards_uri: str) -> str | None:
    """Return the folder that the paths of samples are relative to; None: it is not known."""
    try:
        return storage.read_bytes(storage.join(shards_uri, SOURCE_NAME)).decode()
    except (OSError, ValueError, StorageError):
        return None


def read_source_file(source_uri: str, path: str) -> bytes | None:
    """Return a file of the source; None where it cannot be read.

    Args:
        source_uri: As `read_source` returns it.
        path: Of a sample, as its shard has it: relative to the source or absolute, percent-encoded.
    """
    name = unquote_to_bytes(path)
    try:
        if name.startswith(b"gs://"):
            return storage.read_bytes(name.decode())
        if storage.is_local(source_uri):
            folder = os.fsencode(storage.local_path(source_uri))
            return Path(os.fsdecode(os.path.join(folder, name))).read_bytes()  # noqa: PTH118
        return storage.read_bytes(storage.join(source_uri, name.decode()))
    except (OSError, ValueError, StorageError):
        return None
