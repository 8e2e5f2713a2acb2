"""Parsed documents and scalars of runs, kept within bounds: read again is only what is new."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from contracts import storage
from contracts.artifacts import Contract, ShardManifest
from contracts.artifacts.shard_table import check_table
from inspection.run.curves import CurveReader
from inspection.run.door import Door, parse_json
from inspection.run.view import Curves

C = TypeVar("C", bound=Contract)
Version = tuple[int, ...]
# Of JSON; parsed it takes about ten times that.
KEPT_BYTES = 96 << 20
# Of scalars, 8 bytes each, and 16 for each line.
KEPT_VALUES = 4_000_000
# A document from this size on is parsed alone.
ALONE_BYTES = 4 << 20


@dataclass(frozen=True)
class _Kept:
    version: Version
    document: Contract
    sha256: str
    bytes: int


class Documents:
    """Documents that were read, the newest last: readers of one process share what large manifests take.

    However many readers there are, it holds `most_bytes` of JSON, and one document from ALONE_BYTES on is parsed at a
    time: some 2 GB at most, parsed, with the bounds above and manifests of 96 MB.

    Args:
        most_bytes: Bytes of JSON whose documents are kept.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._curves: OrderedDict[str, CurveReader] = OrderedDict()
        self._lock = threading.Lock()
        self._alone = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of JSON whose documents are kept."""
        return self._bytes

    def read(self, door: Door, kind: type[C], uri: str, most: int) -> C:
        """Return a document of a line, parsed once per version of its file.

        Raises:
            ValueError, ShardlineError, OSError: It cannot be read (door.HARM).
        """
        door.require(uri)
        size, version = _look(uri)
        with self._alone if size >= ALONE_BYTES else contextlib.nullcontext():
            kept = self._find(uri, version)
            if kept is not None and isinstance(kept.document, kind):
                return kept.document
            document, sha256, num_bytes = _parse(door, kind, uri, most)
            self._keep(uri, _Kept(version, document, sha256, num_bytes))
        return document

    def sha256(self, door: Door, uri: str, most: int) -> str:
        """Return the hash of a file's content as it is now; raises as `read`."""
        door.require(uri)
        kept = self._find(uri, _look(uri)[1])
        return kept.sha256 if kept is not None else hashlib.sha256(door.read(uri, most)).hexdigest()

    def curves(self, folder_uri: str, *, points: int) -> Curves:
        """Return a training's curves: of files that were read before, only what was added is read.

        Args:
            folder_uri: Its scalars/, local or in a bucket.
            points: Most rows of a curve, at least 4.
        """
        with self._lock:
            # Taken out while it reads: another reading of the same training begins anew.
            reader = self._curves.pop(folder_uri, None) or CurveReader(folder_uri)
        reader.poll()
        found = reader.curves(points)
        with self._lock:
            self._curves[folder_uri] = reader
            while sum(each.num_values for each in self._curves.values()) > KEPT_VALUES:
                self._curves.popitem(last=False)
        return found

    def _find(self, uri: str, version: Version) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(uri)
            if kept is None or kept.version != version:
                return None
            self._kept.move_to_end(uri)
            return kept

    def _keep(self, uri: str, kept: _Kept) -> None:
        with self._lock:
            if (before := self._kept.pop(uri, None)) is not None:
                self._bytes -= before.bytes
            if kept.bytes > self._most_bytes:
                return
            self._kept[uri] = kept
            self._bytes += kept.bytes
            while self._bytes > self._most_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].bytes


def _look(uri: str) -> tuple[int, Version]:
    """Return size and version of a file: what changes with its content."""
    if storage.is_local(uri):
        found = storage.local_path(uri).stat()
        return found.st_size, (found.st_size, found.st_mtime_ns, found.st_ino)
    info = storage.info(uri)
    return info.size, (info.generation or 0,)


def _parse(door: Door, kind: type[C], uri: str, most: int) -> tuple[C, str, int]:
    content = door.read(uri, most)
    sha256, num_bytes = hashlib.sha256(content).hexdigest(), len(content)
    document = kind.of_values(parse_json(content), where=storage.display(uri))
    if isinstance(document, ShardManifest) and document.shard_table is not None:
        table_uri = document.shard_table.uri(uri.rpartition("/")[0])
        content = door.read(table_uri, most)
        table = check_table(content, document.shard_table, where=storage.display(table_uri))
        document = document.model_copy(update={"shards": table})
        num_bytes += len(content)
    return document, sha256, num_bytes
