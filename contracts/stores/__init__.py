"""The kinds of storage behind contracts.storage, one module a scheme: local, gcs.

Each has the functions of `Store` for its own URIs. Use contracts.storage, which picks the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol


class AlreadyPublished(Exception):
    """A create-only write met an object with other content."""


@dataclass(frozen=True)
class ObjectInfo:
    """What a listing says about an object without reading it."""

    name: str
    """Path relative to the URI that was listed, as plain text (not percent-encoded); of one object its own name."""
    size: int
    """Bytes."""
    generation: int | None = None
    """Version of the object (gs://): reads with it fail when the object was replaced. None where there is none."""
    crc32c: str | None = None
    """Eight hex digits; None where the storage keeps none."""
    md5: str | None = None
    """32 hex digits; None where the storage keeps none (in gs://: objects that were composed or uploaded in parts)."""
    updated_s: float = field(default=0.0, compare=False)
    """When it was last written to, in seconds since 1970; 0 in pages of `list_page`."""


@dataclass(frozen=True)
class Wanted:
    """An object to read, as a listing described it."""

    uri: str
    generation: int | None = None
    """Only this version of it (gs://)."""
    crc32c: str | None = None
    """Eight hex digits that the content must have; None compares nothing."""


class Store(Protocol):
    """What a module of this package offers; contracts.storage says what each function means."""

    def exists(self, uri: str) -> bool: ...
    def info(self, uri: str) -> ObjectInfo: ...
    def read_bytes(self, uri: str, generation: int | None) -> bytes: ...
    def read_range(self, uri: str, start: int, length: int, generation: int | None) -> bytes: ...
    def open_read(self, uri: str, generation: int | None) -> BinaryIO: ...
    def list_names(self, uri: str) -> list[str]: ...
    def list_objects(self, uri: str, recursive: bool) -> Iterator[ObjectInfo]: ...
    def publish(self, uri: str, content: bytes) -> None: ...
    def publish_file(self, path: Path, uri: str) -> None: ...
    def publish_stream(self, uri: str, stream: BinaryIO, num_bytes: int) -> str: ...
    def replace(self, uri: str, content: bytes) -> None: ...
    def delete(self, uri: str) -> None: ...
    def delete_tree(self, uri: str, manifest_name: str) -> None: ...
