"""Index of a shard, NAME.idx.npy: offset, label and hashes of each sample.

An index is a NumPy file of one array [samples] of dtype `ROW`, in the order of the samples in the shard; `numpy.load`
reads it. The manifest has its size and crc32c. Samples are numbered over all shards in the manifest's order
(`SampleIndex`), so a split is a contiguous range of places.
"""

from __future__ import annotations

import io
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardEntry, ShardManifest
from contracts.errors import DataError

ROW = np.dtype(
    [
        ("offset", "<u8"),  # of the whole sample in the shard: its tar members with their padding, or its Example
        ("size", "<u4"),  # of the whole sample, in bytes
        ("crc32c", "<u4"),  # of the whole sample
        ("label", "<i4"),  # place in ShardManifest.classes; NO_LABEL where a sample may have several, or none
        ("key", "V16"),  # hash of the sample's path in its source
        ("source", "<u8"),  # hash of what the sample was made of: size and version of its file, classes, cells
        ("content", "<u8"),  # hash of its first file as it is stored (of a row without files, of its cells)
    ]
)
Index = npt.NDArray[np.void]
"""Rows [n] of dtype `ROW`."""
NO_LABEL = -1

# Cached rows of a SampleIndex: some hundred shards.
_CACHE_BYTES = 64 << 20
# Concurrent range reads and samples in memory: enough to hide a bucket's latency of some 30 ms.
_THREADS = 32
_TODO = "run the shard stage again with --fresh, or copy the folder of shards again"


class DamagedSample(DataError):
    """One sample is damaged, or no image; its neighbours may be intact."""


def pack_index(rows: Index) -> bytes:
    """Return an index file; equal rows give equal bytes."""
    assert rows.dtype == ROW and rows.ndim == 1, rows.dtype
    stream = io.BytesIO()
    np.save(stream, rows, allow_pickle=False)
    return stream.getvalue()


def unpack_index(content: bytes, entry: ShardEntry) -> Index:
    """Return the rows [samples] of an index file, verified by the manifest.

    Raises:
        DataError: It is damaged, or is no index of this version.
    """
    name = entry.index.relative_path
    if storage.crc32c(content) != entry.index.crc32c:
        raise damaged_index(name, "has another crc32c than the manifest says")
    try:
        rows = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except ValueError as error:
        raise damaged_index(name, f"is no NumPy file: {error}") from None
    if rows.dtype != ROW or rows.shape != (entry.samples,):
        raise damaged_index(name, f"has {len(rows)} rows of type {rows.dtype}, not {entry.samples} of this version")
    return np.asarray(rows)


def read_index(folder_uri: str, entry: ShardEntry) -> Index:
    """Return the rows [samples] of a shard.

    Args:
        folder_uri: Folder of the manifest.
        entry: The shard.

    Raises:
        DataError: The index is missing or damaged.
    """
    try:
        content = storage.read_bytes(entry.index.uri(folder_uri))
    except OSError as error:
        reason = error.strerror or "it is not there"
        raise damaged_index(entry.index.relative_path, f"cannot be read ({reason})") from None
    return unpack_index(content, entry)


class SampleIndex:
    """Rows of the samples of all shards by place, with an LRU cache of shards.

    Args:
        manifest: Manifest of the shards.
        folder_uri: Its folder.
        read: Returns the content of a shard's index; unset: it is read from its URI.
    """

    def __init__(
        self, manifest: ShardManifest, folder_uri: str, read: Callable[[ShardEntry], bytes] | None = None
    ) -> None:
        self.manifest = manifest
        self._folder_uri, self._read = folder_uri, read
        self._count = sum(manifest.shards.samples)
        self._cached: OrderedDict[int, Index] = OrderedDict()
        self._cached_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Any:
        """Return the row of a sample.

        Raises:
            DataError: The index of its shard is missing or damaged.
        """
        if not 0 <= place < self._count:
            raise IndexError(f"sample {place} of {self._count}")
        shard, row = self.manifest.shards.locate(place)
        return self.rows(shard)[row]

    def rows(self, shard: int) -> Index:
        """Return the rows [samples] of a shard, by its number; raises as `read_index`."""
        if shard in self._cached:
            self._cached.move_to_end(shard)
            return self._cached[shard]
        entry = self.manifest.shards[shard]
        rows = read_index(self._folder_uri, entry) if self._read is None else unpack_index(self._read(entry), entry)
        self._cached[shard] = rows
        self._cached_bytes += rows.nbytes
        while self._cached_bytes > _CACHE_BYTES and len(self._cached) > 1:
            self._cached_bytes -= self._cached.popitem(last=False)[1].nbytes
        return rows

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """Return the labels [count] of the samples from a place on."""
        pieces = []
        while count > 0:
            shard, row = self.manifest.shards.locate(first)
            labels = self.rows(shard)["label"][row : row + count]
            pieces.append(labels)
            first, count = first + len(labels), count - len(labels)
        return np.concatenate([np.empty(0, np.int32), *pieces])


def choose_by_class(index: SampleIndex, count: int) -> list[int]:
    """Return the places of training samples: every class once before any comes twice, of the shards that are read.

    Shards are read until they have eight times as many samples: each is a random part of the split.

    Args:
        index: Of all samples.
        count: Samples at most.
    """
    shards = index.manifest.shards
    ranked: list[tuple[int, int, int]] = []
    samples_of: Counter[int] = Counter()
    for shard in shards.numbers_of("train"):
        if len(ranked) >= 8 * count:
            break
        for place, label in enumerate(index.rows(shard)["label"].tolist(), start=shards.first[shard]):
            ranked.append((samples_of[label], label, place))
            samples_of[label] += 1
    return [place for _, _, place in sorted(ranked)[:count]]


def read_samples(index: SampleIndex, folder_uri: str, places: Iterable[int]) -> Iterator[bytes]:
    """Yield the bytes of samples, in order and verified by checksum, with concurrent reads from a bucket.

    Args:
        index: Index of all samples.
        folder_uri: Folder of the shards.
        places: Places of the samples.

    Raises:
        DataError: A sample is damaged, or its shard is missing.
    """
    shards = index.manifest.shards

    def read(place: int) -> bytes:
        return read_payload(shards[shards.locate(place)[0]].uri(folder_uri), index[place])

    if storage.is_local(folder_uri):
        yield from map(read, places)
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="samples") as pool:
        remaining = iter(places)
        while batch := list(islice(remaining, _THREADS)):
            for place in batch:
                index[place]  # SampleIndex is not thread-safe: fill its cache here
            yield from pool.map(read, batch)


def read_payload(shard: int | str, row: Any, *, name: str | None = None) -> bytes:
    """Return the bytes of one sample, verified.

    Args:
        shard: URI of the shard file, or a file descriptor, whose position is neither used nor changed.
        row: Its row of the index.
        name: Name of the shard in errors; unset: its URI.

    Raises:
        DataError: The shard cannot be read, or no file is as long as the index says.
        DamagedSample: It is shorter than the index says, or the bytes have another crc32c.
    """
    shard_name = f"shard {name or shard}"
    offset, size = int(row["offset"]), int(row["size"])
    try:
        content = storage.read_range(shard, offset, size) if isinstance(shard, str) else _pread(shard, offset, size)
    except OSError as error:
        raise _bad_payload(shard_name, row, f"cannot be read ({error.strerror or 'it is not there'})") from None
    except OverflowError:
        raise _bad_payload(shard_name, row, "no file has that offset") from None
    if damage := find_sample_damage(content, row):
        raise _bad_payload(shard_name, row, damage, kind=DamagedSample)
    return content


def find_sample_damage(content: bytes, row: Any) -> str | None:
    """Compare the bytes of a sample with its row of the index; return the damage, or None."""
    if len(content) != int(row["size"]):
        return f"ends {int(row['size']) - len(content)} bytes too early"
    crc32c = google_crc32c.value(content)
    if crc32c != int(row["crc32c"]):
        return f"has crc32c {crc32c:08x}, the index says {int(row['crc32c']):08x}"
    return None


def key_of(row: Any) -> str:
    """Return the key of a sample as its 32 hex digits."""
    return bytes(row["key"].tobytes()).hex()


def damaged_index(name: str, damage: str) -> DataError:
    """Return the error for a damaged index."""
    return DataError(f"the index {name} {damage}", allowed="the index that the shard stage wrote", todo=_TODO)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    """Return the bytes [offset, offset + size) of an open file, fewer where it ends before."""
    content = os.pread(descriptor, size, offset)
    # One call returns at most about 2 GiB, and less on some file systems.
    while len(content) < size and (more := os.pread(descriptor, size - len(content), offset + len(content))):
        content += more
    return content


def _bad_payload(shard_name: str, row: Any, damage: str, kind: type[DataError] = DataError) -> DataError:
    return kind(
        f"{shard_name}, sample {key_of(row)} at offset {int(row['offset'])}: {damage}",
        allowed="shards that agree with their index",
        todo=_TODO,
    )
