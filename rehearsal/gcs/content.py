"""The bytes of the objects on disk, and the tree of plain files that shows them.

    ROOT/.gcs/content/ID        the bytes of one generation: written once, never changed
    ROOT/BUCKET/OBJECT NAME     a hard link to the live generation, mode 0444, so that any program can read it

An object's row in the index (objects.py) names its content: the row is the commit. A content without a row is what a
killed server leaves; the next start removes it. The tree is a view for reading: what is changed through it is not seen.
A name that a file system cannot hold (an empty part as in `a//b` or `a/`, `.` and `..`, a part above 255 bytes, an
object below another object) is served like any other and has no place in the tree.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

STATE_FOLDER = ".gcs"
_MAX_PART_BYTES = 255
_BLOCK_BYTES = 1 << 20
# Whoever writes into the tree would change a generation that is never changed.
_READ_ONLY = 0o444


@dataclass(frozen=True)
class Content:
    """Finished bytes on disk."""

    id: str
    size: int
    crc32c: str
    """Base64 of the big-endian checksum, as the API shows it."""
    md5: str
    """Base64."""


class _Digests:
    """crc32c, MD5 and size of bytes that pass by."""

    def __init__(self) -> None:
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0

    def update(self, data: bytes) -> None:
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._md5.update(data)
        self.size += len(data)

    def content(self, content_id: str) -> Content:
        return Content(content_id, self.size, _base64(self._crc32c.to_bytes(4)), _base64(self._md5.digest()))


class ContentWriter:
    """Bytes that become a content when they are complete."""

    def __init__(self, folder: Path) -> None:
        self.id = uuid.uuid4().hex
        self._path = folder / self.id
        self._file = self._path.open("xb")
        self._digests = _Digests()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._digests.size

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)
        self._digests.update(data)

    def finish(self) -> Content:
        """Close the file, for reading from now on, and return what it is; a second call returns the same."""
        self._file.close()
        self._path.chmod(_READ_ONLY)
        return self._digests.content(self.id)

    def discard(self) -> None:
        """Remove the bytes."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class ContentFolder:
    """The files below a server's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root / STATE_FOLDER / "content"
        self._folder.mkdir(parents=True, exist_ok=True)

    def writer(self) -> ContentWriter:
        """Start a new content."""
        return ContentWriter(self._folder)

    def write(self, pieces: Iterable[bytes]) -> Content:
        """Write a new content from pieces; nothing is left when they fail on the way."""
        writer = self.writer()
        try:
            for piece in pieces:
                writer.write(piece)
        except BaseException:
            writer.discard()
            raise
        return writer.finish()

    def open(self, content_id: str) -> BinaryIO:
        """Open a content for reading; it stays readable when the object is deleted or overwritten meanwhile."""
        return (self._folder / content_id).open("rb")

    def duplicate(self, content_id: str) -> str:
        """Return a second id for the same bytes, without copying them."""
        other = uuid.uuid4().hex
        (self._folder / other).hardlink_to(self._folder / content_id)
        return other

    def remove(self, content_id: str) -> None:
        """Delete a content."""
        (self._folder / content_id).unlink(missing_ok=True)

    # --- the tree of plain files ---

    def show(self, bucket: str, name: str, content_id: str) -> None:
        """Let the plain file of an object be this content, if the file system can hold its name."""
        target = self._place(bucket, name)
        if target is None:
            return
        link = self.root / STATE_FOLDER / f"link-{uuid.uuid4().hex}"
        link.hardlink_to(self._folder / content_id)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            link.replace(target)
            # A rename between two links to the same bytes (a copy onto itself) does nothing, by POSIX.
            link.unlink(missing_ok=True)
        except OSError as error:
            link.unlink()
            # Another object is a folder of this one's name, or the other way round; or the path is too long.
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise

    def _show_again(self, bucket: str, name: str, content_id: str) -> None:
        """Show an object that a killed server had committed and not yet shown."""
        target = self._place(bucket, name)
        if target is None:
            return
        try:
            shown = target.samefile(self._folder / content_id)
        except OSError:
            shown = False
        if not shown:
            self.show(bucket, name, content_id)

    def hide(self, bucket: str, name: str) -> None:
        """Remove the plain file of an object, and the folders that it leaves empty."""
        target = self._place(bucket, name)
        if target is None:
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            target.unlink()
        for folder in target.parents:
            if folder == self.root / bucket:
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

    def _place(self, bucket: str, name: str) -> Path | None:
        parts = name.split("/")
        if any(part in ("", ".", "..") or len(part.encode()) > _MAX_PART_BYTES or "\0" in part for part in parts):
            return None
        return self.root.joinpath(bucket, *parts)

    # --- after a start ---

    def recover(self, live: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str, Content]]:
        """Bring the files in line with the index after a kill, and yield the files that are new to it.

        Args:
            live: Content of every object, by bucket and name.

        Yields:
            Bucket, object name and content of each plain file that no request wrote; its bytes are read once.
        """
        for link in (self.root / STATE_FOLDER).glob("link-*"):
            link.unlink()
        ours = {entry.inode() for entry in os.scandir(self._folder)}
        strangers = []
        for path, inode in list(self._plain_files()):
            bucket, _, name = path.relative_to(self.root).as_posix().partition("/")
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise RuntimeError(f"{path} cannot be served: its name is not UTF-8, as an object's has to be")
            if inode not in ours:
                strangers.append((path, bucket, name))
            elif (bucket, name) not in live:
                self.hide(bucket, name)
        for content_id in {entry.name for entry in os.scandir(self._folder)} - set(live.values()):
            self.remove(content_id)
        for (bucket, name), content_id in live.items():
            self._show_again(bucket, name, content_id)
        for path, bucket, name in strangers:
            if path.exists():
                yield bucket, name, self._adopt(path)

    def _adopt(self, path: Path) -> Content:
        content_id, digests = uuid.uuid4().hex, _Digests()
        path.chmod(_READ_ONLY)
        for piece in read_in_turn([path.open("rb")]):
            digests.update(piece)
        (self._folder / content_id).hardlink_to(path)
        return digests.content(content_id)

    def _plain_files(self) -> Iterator[tuple[Path, int]]:
        for bucket in os.scandir(self.root):
            if bucket.is_dir() and not bucket.name.startswith("."):
                for folder, _, names in os.walk(bucket.path):
                    for name in names:
                        path = Path(folder, name)
                        yield path, path.stat().st_ino


def read_in_turn(files: Iterable[BinaryIO]) -> Iterator[bytes]:
    """Yield the bytes of open files, one after the other, and close them."""
    with contextlib.ExitStack() as opened:
        for file in [opened.enter_context(file) for file in files]:
            while piece := file.read(_BLOCK_BYTES):
                yield piece


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
