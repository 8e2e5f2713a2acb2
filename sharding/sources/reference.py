"""What every kind of source gives: references to files, and the listing that holds them all."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contracts import storage

IDENTITY_BYTES = 8


class Reference(NamedTuple):
    """One file of the source: what Beam shuffles instead of its content."""

    path: bytes
    """Relative to `Listing.uri`, or a URI or an absolute path outside of it."""
    label: int
    """Place of its class in `Listing.classes`; with several, that of the first."""
    split: int
    """Place in contracts.config.SPLITS."""
    size: int
    """Bytes."""
    generation: int
    """Changes when the file does: its modification time in ns, or the object's generation."""
    content_hash: bytes = b""
    """`crc32c:HEX` or `md5:HEX` where the listing knows it."""
    more_labels: tuple[int, ...] = ()
    """Places of the other classes of an image that has several, ascending."""

    @property
    def labels(self) -> tuple[int, ...]:
        """Places of all classes of the image."""
        return (self.label, *self.more_labels)

    def identity(self, classes: Sequence[bytes]) -> bytes:
        """Return a hash of 8 bytes over all that a sample of this path is made of: it changes when the sample does.

        Classes count by name: their places may differ between two states of a source.
        """
        names = classes[self.label]
        if self.more_labels:
            names = b"\0".join(sorted(classes[label] for label in self.labels))
        content = b"%d\0%d\0%b\0%b" % (self.size, self.generation, self.content_hash, names)
        return hashlib.blake2b(content, digest_size=IDENTITY_BYTES, person=b"shardline source").digest()


@dataclass(frozen=True)
class Listing:
    """All files of a source."""

    uri: str
    """Folder that paths are relative to."""
    classes: tuple[bytes, ...]
    """Names of the classes; a label is a place here."""
    references: tuple[Reference, ...]
    """Sorted by path."""
    ignored: tuple[bytes, ...] = ()
    """Paths that are no images by their name, sorted; a folder ends with a slash."""
    multi_label: bool = False
    """Whether the labels of an image are a list."""
    splits_given: bool = False
    """Whether the source itself decides about splits, by naming them or by its groups."""

    @property
    def is_remote(self) -> bool:
        """Whether any of it is in a bucket: a local manifest may name objects."""
        return not storage.is_local(self.uri) or any(one.path.startswith(b"gs://") for one in self.references)

    @property
    def sha256(self) -> str:
        """Hash over path, size and generation of every file, and over what the source says about it.

        What was ignored is not in it: a .DS_Store that comes or goes is no reason to shard again.
        """
        total = hashlib.sha256(b"multi-label\0" if self.multi_label else b"")
        for name in self.classes:
            total.update(b"%b\0" % name)
        for reference in self.references:
            # No path holds a zero byte: fields and lines cannot run into each other.
            total.update(b"\0%b\0%d\0%d\0" % (reference.path, reference.size, reference.generation))
            total.update(b",".join(b"%d" % label for label in reference.labels))
            if self.splits_given:
                total.update(b"\0%d" % reference.split)
        return total.hexdigest()

    def count_by_class(self, split: int) -> list[int]:
        """Return the number of files of each class in a split."""
        counts = [0] * len(self.classes)
        for reference in self.references:
            if reference.split == split:
                for label in reference.labels:
                    counts[label] += 1
        return counts


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
