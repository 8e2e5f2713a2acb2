"""What a shard says about a sample besides its image: read from where the sample lies, without scanning the shard.

It is in the JSON member that follows the image in a tar, and in the features that follow it in a TFRecord. Shards made
elsewhere may have none.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from contracts import storage
from records.tar import BLOCK_BYTES
from records.tfrecord import read_varint
from records.whole_sample import path_in

# Enough for what our writers put behind an image: a path is below 4 KiB before it is encoded.
_WINDOW_BYTES = 1 << 16
_FILENAME = b"image/filename"


def read_path(shard: Path | str, record: Any, *, whole_format: str | None = None) -> str | None:
    """Return the path of a sample in its source, None where the shard does not say it.

    Args:
        shard: Path or URI of a file of either format.
        record: The sample's element of the index.
        whole_format: Format of the shards where the record is that of a whole sample (index version 2); unset: it is
            that of the image alone.
    """
    if whole_format is not None:
        sample = storage.read_range(storage.normalise(shard), int(record["offset"]), int(record["size"]))
        return path_in(sample, whole_format)
    end = int(record["offset"]) + int(record["size"])
    uri = storage.normalise(shard)
    is_tar = uri.endswith(".tar")
    if is_tar:
        end += -end % BLOCK_BYTES
    window = storage.read_range(uri, end, _WINDOW_BYTES)
    return _path_in_tar(window) if is_tar else _path_in_features(window)


def _path_in_tar(window: bytes) -> str | None:
    at = 0
    # The label's member may come first.
    for _ in range(2):
        try:
            member = tarfile.TarInfo.frombuf(window[at : at + BLOCK_BYTES], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return None
        at += BLOCK_BYTES
        if member.name.endswith(".json"):
            try:
                found = json.loads(window[at : at + member.size])
            except ValueError:
                return None
            path = found.get("path") if isinstance(found, dict) else None
            return path if isinstance(path, str) else None
        at += member.size + -member.size % BLOCK_BYTES
    return None


def _path_in_features(window: bytes) -> str | None:
    at = window.find(_FILENAME)
    if at < 0:
        return None
    try:
        # Behind the key: the tags and lengths of the value, Feature.bytes_list and BytesList.value.
        at += len(_FILENAME)
        for _ in range(3):
            length, at = read_varint(window, at + 1)
        return window[at : at + length].decode()
    except (IndexError, UnicodeDecodeError):
        return None
