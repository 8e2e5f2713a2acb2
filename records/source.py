"""URI of the source of shards: a file beside their manifest, which contains no paths.

The export tests its predict.py on source files of images that sharding changed. The file is optional, and the source
may have moved.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

from contracts import storage
from contracts.errors import StorageError

SOURCE_NAME = "source.txt"


def write_source(shards_uri: str, source_uri: str) -> None:
    """Write the URI that the paths of samples are relative to."""
    storage.replace(storage.join(shards_uri, SOURCE_NAME), source_uri.encode())


def read_source(shards_uri: str) -> str | None:
    """Return the URI that the paths of samples are relative to, or None."""
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
