"""References to samples of a source: what every kind of source gives, and where their files are."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from contracts import storage

IDENTITY_BYTES = 8
# Label of a sample that is of no class.
NO_CLASS = -1


class SourceFile(NamedTuple):
    """One file that a sample is made of, as the listing saw it."""

    path: bytes
    """As that of a `Reference`."""
    size: int
    generation: int
    content_hash: bytes = b""
    is_image: bool = True
    """Whether of a large file that is no image only the head is read."""


class Reference(NamedTuple):
    """One sample of the source: what Beam shuffles instead of its content."""

    path: bytes
    """Of its file (of several, the one of the first image): relative to `Listing.uri`, or a URI or an absolute path
    outside of it. Of a row without files, `row:` and a hash of its content."""
    label: int
    """Place of its class in `Listing.classes`; with several, that of the first; NO_CLASS where the source has none, or
    the list of labels is empty."""
    split: int
    """Place in contracts.config.SPLITS."""
    size: int
    """Bytes of the file; of a row without files, of `cells`."""
    generation: int
    """Changes when the file does: its modification time in ns, or the object's generation."""
    content_hash: bytes = b""
    """`crc32c:HEX` or `md5:HEX` where the listing knows it."""
    more_labels: tuple[int, ...] = ()
    """Places of the other classes of a sample that has several, ascending."""
    cells: bytes = b""
    """The other fields of a sample of named fields (sharding/sources/fields.py)."""
    more_bytes: int = 0
    """Bytes of the other files and of `cells`, where there is a file."""

    @property
    def is_image(self) -> bool:
        """As `SourceFile.is_image`: a reference alone stands for an image."""
        return True

    @property
    def source_bytes(self) -> int:
        """Bytes of all that the sample is made of."""
        return self.size + self.more_bytes

    @property
    def labels(self) -> tuple[int, ...]:
        """Places of all classes of the sample; none where its list is empty, or the source has no classes."""
        return (self.label, *self.more_labels) if self.label != NO_CLASS else ()

    def identity(self, classes: Sequence[bytes]) -> bytes:
        """Return a hash of 8 bytes over all that a sample of this path is made of: it changes when the sample does.

        Classes count by name: their places may differ between two states of a source.
        """
        names = classes[self.label] if self.label != NO_CLASS else b""
        if self.more_labels:
            names = b"\0".join(sorted(classes[label] for label in self.labels))
        content = b"%d\0%d\0%b\0%b" % (self.size, self.generation, self.content_hash, names)
        if self.cells:
            content += b"\0" + self.cells
        return hashlib.blake2b(content, digest_size=IDENTITY_BYTES, person=b"shardline source").digest()


def remote_uri(source_uri: str, path: bytes) -> str | None:
    """Return the URI of an image that is in a bucket, None for a local file."""
    if path.startswith(b"gs://"):
        return path.decode()
    return None if storage.is_local(source_uri) else storage.join(source_uri, path.decode())


def absolute_path(source_uri: str, path: bytes) -> bytes:
    """Return the path of a local file of the source, in bytes."""
    return os.path.join(_folder(source_uri), path)  # noqa: PTH118


@functools.cache
def _folder(source_uri: str) -> bytes:
    # Asked for every file of a source.
    return os.fsencode(storage.local_path(source_uri))
