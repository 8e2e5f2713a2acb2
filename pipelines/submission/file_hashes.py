"""Sizes and hashes of the files of a local source, kept in the user's cache: what has not changed is not read again.

A file counts as unchanged while device, inode, size and both times (mtime, ctime) are the same: any write sets ctime,
which no program sets back. What was written to within two seconds before it was read is read again next time, since
clocks of file systems are coarse. Deleting the cache costs one reading.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from contracts import storage
from contracts.environment import user_cache

_CACHE_NAME = "data"
_PIECE_BYTES = 1 << 20
_SETTLED_NS = 2 * 10**9
# Some seconds of a disk's reading: from here on it is told.
TOLD_BYTES = 10**9
_TOLD_EVERY_S = 10.0

Key = list[int]
"""Device, inode, size, mtime and ctime in ns."""


@dataclass(frozen=True)
class LocalFile:
    """A file, as it was when it was read."""

    num_bytes: int
    sha256: str
    crc32c: str


def measure_files(root: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, LocalFile]:
    """Return the files below a folder by name; those that the cache knows are not read.

    Args:
        root: The folder, absolute.
        names: Of the files, with `/`.
        say: Told of a reading that takes a while.

    Raises:
        OSError: A file cannot be read.
    """
    keys = {name: _key(root / name) for name in names}
    known = _load(root)
    found = {
        name: LocalFile(key[2], known[name]["sha256"], known[name]["crc32c"])
        for name, key in keys.items()
        if known.get(name, {}).get("key") == key
    }
    missing = [name for name in names if name not in found]
    if missing:
        began_ns = time.time_ns()
        try:
            _read(root, missing, sum(keys[name][2] for name in missing), found, say)
        finally:
            # Also of what was interrupted. Not what was written to meanwhile, or just before.
            settled = {
                name: key for name, key in keys.items() if name in found and max(key[3:]) < began_ns - _SETTLED_NS
            }
            _keep(root, {name: (key, found[name]) for name, key in settled.items() if _key(root / name) == key})
    return {name: found[name] for name in names}


def _read(
    root: Path, names: Sequence[str], total: int, found: dict[str, LocalFile], say: Callable[[str], None]
) -> None:
    """Read files into `found`, and tell of it where they are large."""
    if total >= TOLD_BYTES:
        say(f"reads {len(names)} files, {total / 1e9:.1f} GB, of {root} for their hashes; next time what has changed")
    done, told_s = 0, time.monotonic()
    for name in names:
        found[name] = _measure(root / name)
        done += found[name].num_bytes
        if time.monotonic() - told_s > _TOLD_EVERY_S:
            told_s = time.monotonic()
            say(f"has read {done / 1e9:.1f} of {total / 1e9:.1f} GB")


def forget(root: Path) -> None:
    """Forget what is known of a folder's files."""
    _path(root).unlink(missing_ok=True)


def _key(path: Path) -> Key:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _measure(path: Path) -> LocalFile:
    total, digest, checksum = 0, hashlib.sha256(), 0
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            total += len(piece)
            digest.update(piece)
            checksum = google_crc32c.extend(checksum, piece)
    return LocalFile(total, digest.hexdigest(), f"{checksum:08x}")


def _path(root: Path) -> Path:
    return user_cache(_CACHE_NAME) / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"


def _load(root: Path) -> dict[str, dict[str, Any]]:
    try:
        known: dict[str, dict[str, Any]] = json.loads(_path(root).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def _keep(root: Path, files: Mapping[str, tuple[Key, LocalFile]]) -> None:
    values = {name: {"key": key, "sha256": file.sha256, "crc32c": file.crc32c} for name, (key, file) in files.items()}
    # A machine without a home that can be written reads all each time.
    with contextlib.suppress(OSError):
        _path(root).parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(_path(root)), json.dumps(values).encode())
