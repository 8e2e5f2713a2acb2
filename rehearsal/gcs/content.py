"""Object content on disk.

    ROOT/BUCKET/OBJECT NAME     live generation, mode 0444
    ROOT/.gcs/unnamed/ID        object whose name is not a valid path
    ROOT/.gcs/uploads/ID        bytes of an upload under way

Names that are not valid paths: an empty part as in `a//b` or `a/`, `.` and `..`, a part above 255 bytes, an object
below another object. Such objects exist until the server ends. Plain files in ROOT/BUCKET at the start of a server
become its objects.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

STATE_FOLDER = ".gcs"
_MAX_PART_BYTES = 255
_BLOCK_BYTES = 1 << 20
# Read-only, since generations are immutable.
_READ_ONLY = 0o444
# The path or a parent is taken by another object, or the path is too long.
_NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


class Checksums:
    """crc32c, MD5 and size of a stream of bytes."""

    def __init__(self) -> None:
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0

    def update(self, data: bytes) -> None:
        """Append bytes."""
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._md5.update(data)
        self.size += len(data)

    @property
    def crc32c(self) -> str:
        """Base64 of the big-endian checksum, as in the API."""
        return base64.b64encode(self._crc32c.to_bytes(4)).decode()

    @property
    def md5(self) -> str:
        """Base64 of the MD5 digest."""
        return base64.b64encode(self._md5.digest()).decode()


class StagedFile:
    """Bytes of an upload under way; `Objects.commit` publishes them as an object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checksums = Checksums()
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)
        self.checksums.update(data)

    def finish(self) -> None:
        """Close the complete file."""
        self._file.close()
        self.path.chmod(_READ_ONLY)

    def discard(self) -> None:
        """Delete the bytes, unless they were published."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class ContentFolder:
    """Files below a server's root. Callers must lock `publish` and `remove`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._uploads, self._unnamed = (root / STATE_FOLDER / name for name in ("uploads", "unnamed"))
        for folder in (self._uploads, self._unnamed):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def stage(self) -> StagedFile:
        """Start an upload."""
        return StagedFile(self._uploads / uuid.uuid4().hex)

    def publish(self, staged: StagedFile, bucket: str, name: str) -> Path:
        """Move a complete upload to the path of its object, atomically, and return the path."""
        parts = name.split("/")
        if not any(part in ("", ".", "..") or len(part.encode()) > _MAX_PART_BYTES for part in parts):
            place = self.root.joinpath(bucket, *parts)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                return staged.path.rename(place)
            except OSError as error:
                if error.errno not in _NO_PLACE:
                    raise
        return staged.path.rename(self._unnamed / staged.path.name)

    def remove(self, bucket: str, path: Path) -> None:
        """Delete an object's file and empty parent folders; open files stay readable."""
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if not folder.is_relative_to(self.root / bucket) or folder == self.root / bucket:
                return
            try:
                folder.rmdir()
            except OSError:
                return

    def make_bucket(self, bucket: str) -> None:
        """Make the folder of a bucket."""
        (self.root / bucket).mkdir(exist_ok=True)

    def remove_bucket(self, bucket: str) -> None:
        """Remove the folder of an empty bucket."""
        with contextlib.suppress(OSError):
            (self.root / bucket).rmdir()

    def adopt(self) -> Iterator[tuple[str, str, Path, Checksums]]:
        """Make existing plain files read-only; yield bucket, object name, path and checksums of each.

        Raises:
            RuntimeError: A file's name is not UTF-8.
        """
        for bucket in sorted(self.root.iterdir()):
            if bucket.name.startswith(".") or not bucket.is_dir():
                continue
            for folder, _, files in os.walk(bucket):
                for path in (Path(folder, file) for file in files):
                    if path.is_symlink():
                        # Symbolic links are not objects; their targets keep their mode.
                        continue
                    name = path.relative_to(bucket).as_posix()
                    if any("\ud800" <= character <= "\udfff" for character in name):
                        raise RuntimeError(f"{path} cannot be served: its name is not UTF-8, as an object's has to be")
                    checksums = Checksums()
                    with path.open("rb") as file:
                        while piece := file.read(_BLOCK_BYTES):
                            checksums.update(piece)
                    path.chmod(_READ_ONLY)
                    yield bucket.name, name, path, checksums
