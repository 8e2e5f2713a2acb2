"""Rows of the index of shards in a bucket, shard by shard as they are needed: index version 2.

    ROOT/index/rows/CRC-SIZE-ROWS   the rows and columns of one shard, as a part file, and the crc32c of its header
    ROOT/index/rows/.lock-N         who fetches those of some shards: ranks and loader processes share them

What the manifest says of a shard's rows is compared whenever they are read, from the bucket or from the disk: nothing
that lies there is believed. A file may vanish at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import uuid
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import IndexPart, ShardEntry, ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.errors import DataError
from records.index import NO_LABEL, RECORD, Index
from records.index_parts import HEADER_BYTES, PartLayout, make_records, parse_layout, read_layout
from records.samples import PartedIndex, open_samples, shard_rows
from trainer.data.bucket.cache import INDEX_FOLDER, RangeCache, shard_key

ROWS_FOLDER = "rows"
# In memory of each process: 800,000 samples.
MEMORY_BYTES = 32 << 20
# On disk: at least this, else a share of what the shards may take there. Rows are 44 bytes a sample of some 100 KB.
_LEAST_DISK_BYTES, _DISK_SHARE = 256 << 20, 1 / 16
# Shards with a common lock wait for each other.
_LOCKS = 16
# What changed on its way comes right the second time.
_ATTEMPTS = 2


class FetchedRows:
    """The index of shards in a bucket as one address space, of which rows are fetched by shard.

    Args:
        shards_uri: Folder of the shards.
        manifest: Their manifest.
        root: Where rows are kept on disk.
        limit_bytes: Bytes of shards that are kept on this machine; rows take a share of it on top.
    """

    def __init__(self, shards_uri: str, manifest: ShardManifest, root: RangeCache, limit_bytes: int) -> None:
        self._shards_uri, self._manifest, self._root = shards_uri, manifest, root
        self._limit_bytes = max(_LEAST_DISK_BYTES, int(limit_bytes * _DISK_SHARE))
        self._stored = open_samples(manifest, shards_uri)
        assert isinstance(self._stored, PartedIndex)
        self._shard_firsts = shard_columns(manifest.shards).first
        self._part_firsts = [part.first for part in manifest.index_parts]
        self._layouts: dict[int, PartLayout] = {}
        self._begin()

    def _begin(self) -> None:
        self._changing = threading.Lock()
        self._held: OrderedDict[int, Index] = OrderedDict()
        self._held_bytes = 0
        # At the first file written, so that what earlier processes left counts too.
        self._written_bytes = self._limit_bytes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_changing", "_held")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, place: int | slice) -> Any:
        """Return the record of one sample, or an array [n] of a run of them.

        Raises:
            DataError: The rows are missing in the bucket, or are not as the manifest says.
        """
        if not isinstance(place, slice):
            shard = self.shard_of(place)
            return self.load(shard)[place - int(self._shard_firsts[shard])]
        first, end, _ = place.indices(len(self))
        found = []
        while first < end:
            shard = self.shard_of(first)
            begin = int(self._shard_firsts[shard])
            found.append(self.load(shard)[first - begin : end - begin])
            first += len(found[-1])
        return np.concatenate(found) if found else np.empty(0, RECORD)

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """Return labels [count], from the bucket: nothing but the column is read, which has no checksum of its own."""
        return self._stored.labels(first, count)

    def shard_of(self, place: int) -> int:
        """Return the shard of a sample, by the manifest alone."""
        return int(np.searchsorted(self._shard_firsts, place, side="right")) - 1

    def load(self, shard: int) -> Index:
        """Return the records of a shard [samples], fetched unless a process of this machine has done so."""
        with self._changing:
            if (records := self._held.get(shard)) is not None:
                self._held.move_to_end(shard)
                return records
        records = self._records_of(shard)
        with self._changing:
            if shard not in self._held:
                self._held[shard] = records
                self._held_bytes += records.nbytes
            while self._held_bytes > MEMORY_BYTES and len(self._held) > 1:
                self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return records

    def _records_of(self, shard: int) -> Index:
        entry = self._manifest.shards[shard]
        folder = self._root.folder / INDEX_FOLDER / ROWS_FOLDER
        path = folder / f"{shard_key(entry)}-{entry.rows_crc32c}"
        content = _read_kept(path, entry)
        if content is None:
            with self._turn(folder, shard):
                content = _read_kept(path, entry)
                if content is None:
                    content = self._fetch(entry)
                    self._keep(path, content)
        layout = parse_layout(content[:HEADER_BYTES], path.name)
        rows, columns = shard_rows(layout, content[HEADER_BYTES:])
        return make_records(rows, columns.get("label", NO_LABEL), shard)

    @contextlib.contextmanager
    def _turn(self, folder: Path, shard: int) -> Iterator[None]:
        """Wait until no other process or thread fetches rows of the shard; without a folder nobody waits."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self._root.make(folder.parent)
                folder.mkdir(exist_ok=True)
                lock = stack.enter_context((folder / f".lock-{shard % _LOCKS}").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch(self, entry: ShardEntry) -> bytes:
        """Return the rows and columns of a shard as a part file, from the bucket, checked."""
        number = bisect_right(self._part_firsts, entry.first) - 1
        part = self._manifest.index_parts[number]
        uri = part.uri(self._shards_uri)
        for _ in range(_ATTEMPTS):
            layout = self._layouts.get(number) or read_layout(uri)
            content = b"".join(self._values(uri, layout, part, entry))
            if _crc32c(content) == entry.rows_crc32c:
                self._layouts[number] = layout
                return PartLayout(entry.samples, layout.columns).header() + content
            # The header may be what is wrong.
            self._layouts.pop(number, None)
        raise DataError(
            f"the index {uri} has wrong rows for shard {entry.relative_path}: crc32c {_crc32c(content)}, "
            f"the manifest says {entry.rows_crc32c or 'none'}",
            allowed="the index that the shard stage wrote",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )

    def _values(self, uri: str, layout: PartLayout, part: IndexPart, entry: ShardEntry) -> Iterator[bytes]:
        for column in (None, *(name for name, _ in layout.columns)):
            at, kind = layout.place_of(column)
            try:
                yield storage.read_range(
                    uri, at + (entry.first - part.first) * kind.itemsize, entry.samples * kind.itemsize
                )
            except FileNotFoundError:
                raise DataError(
                    f"the index {uri} is not there",
                    allowed="the index that the shard stage wrote",
                    todo="run the shard stage again with --fresh, or copy the folder of shards again",
                ) from None

    def _keep(self, path: Path, content: bytes) -> None:
        """Write rows to the disk, for other processes; where there is no room they fetch for themselves."""
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            temporary.write_bytes(content + bytes.fromhex(_crc32c(content[:HEADER_BYTES])))
            temporary.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._written_bytes += len(content)
        # Not at every file: looking at all of them takes time.
        if self._written_bytes >= self._limit_bytes // 8:
            self._written_bytes = 0
            _evict(path.parent, self._limit_bytes)


def _read_kept(path: Path, entry: ShardEntry) -> bytes | None:
    """Return the rows of a shard from the disk, None where they are not there or not right."""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        content, header_crc32c = content[:-4], content[-4:].hex()
        if (_crc32c(content[:HEADER_BYTES]), _crc32c(content[HEADER_BYTES:])) == (header_crc32c, entry.rows_crc32c):
            # Those used last are deleted last.
            os.utime(path)
            return content
    return None


def _crc32c(content: bytes) -> str:
    return f"{google_crc32c.value(content):08x}"


def _evict(folder: Path, limit_bytes: int) -> None:
    """Delete the files that were not used for longest, until there is room again."""
    found: list[tuple[int, int, str]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes * 3 // 4:
            break
        if not Path(path).name.startswith("."):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        total -= size
