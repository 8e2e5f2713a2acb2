"""All samples of a folder of shards by their place in the index, whichever version the index has.

A sample is a record of dtype records.index.RECORD: shard, label, key, and offset, size and crc32c of what is stored for
it. In version 1 that is the image itself; in version 2 it is the whole sample, of which `image_of` takes the image. So
what is read is compared with the record (records.index.read_payload) before anything else is done with it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.errors import DataError
from records.index import NO_LABEL, RECORD, Index, damaged_index, read_part
from records.index_parts import HEADER_BYTES, ROW, Array, PartLayout, make_records, parse_layout
from records.whole_sample import IMAGE_FEATURE, extract_image

ReadPart = Callable[[int, int, int], bytes]
"""Returns the bytes [offset, offset + size) of a part by number, offset and size; fewer where its file ends before."""

# Of records that `PartedIndex.take` keeps: those of a million and a half samples.
MOST_HELD_BYTES = 64 << 20

# What a record has before the row: shard and label.
_HEAD = struct.Struct("<Ii")
_LABEL = struct.Struct("<i")


class SampleIndex(Protocol):
    """One address space of all samples; whoever reads knows neither version nor files."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, place: int | slice) -> Any:
        """Return the record of one sample, or an array [n] of a run of them."""

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """Return the labels [count] of the samples from `first` on; in version 2, nothing else is read."""


class PartedIndex:
    """The index of version 2, whose parts are read where they lie.

    Args:
        manifest: Of the shards.
        read: Reads from the parts.

    Raises:
        DataError: The parts do not have the samples that the manifest counts.
    """

    def __init__(self, manifest: ShardManifest, read: ReadPart) -> None:
        self._read_part = read
        self._parts = manifest.index_parts
        self._firsts = [part.first for part in self._parts]
        self._shard_firsts = shard_columns(manifest.shards).first
        self._count = check_parts(manifest)
        self._layouts: dict[int, PartLayout] = {}
        self._last: tuple[int, Any] = (-1, None)
        self._held: dict[int, Index] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int | slice) -> Any:
        """Read a record, or a run of them.

        Raises:
            DataError: A part cannot be read, or was cut short.
        """
        if isinstance(place, slice):
            first, end, step = place.indices(self._count)
            if step != 1:
                raise IndexError(f"a run of records, not each {step}th")
            return self._run(first, max(0, end - first))
        last, record = self._last
        if last != place:
            # It is often asked for twice: for the bytes, and for the label.
            record = self._one(place)
            self._last = (place, record)
        return record

    def take(self, places: npt.NDArray[np.int64]) -> Index:
        """Return the records [n] of samples anywhere; parts are kept in memory, up to `MOST_HELD_BYTES`.

        Raises:
            DataError: A part cannot be read, or was cut short.
        """
        numbers = np.searchsorted(self._firsts, places, side="right") - 1
        found = np.empty(len(places), RECORD)
        for part in np.unique(numbers).tolist():
            own = numbers == part
            found[own] = self._of_part(part, places[own])
        return found

    def _of_part(self, part: int, places: npt.NDArray[np.int64]) -> Index:
        if part not in self._held:
            entry = self._parts[part]
            if self._held_bytes + entry.samples * RECORD.itemsize > MOST_HELD_BYTES:
                return np.array([self._one(place) for place in places.tolist()], RECORD)
            self._held_bytes += entry.samples * RECORD.itemsize
            self._held[part] = self._run(entry.first, entry.samples)
        return self._held[part][places - self._firsts[part]]

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """See `SampleIndex`."""
        found = [np.frombuffer(self._values(part, "label", *run), "<i4") for part, *run in self._runs(first, count)]
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def _one(self, place: int) -> Any:
        if not 0 <= place < self._count:
            raise IndexError(f"record {place} of {self._count}")
        part = bisect_right(self._firsts, place) - 1
        row = place - self._firsts[part]
        (label,) = _LABEL.unpack(self._values(part, "label", row, 1))
        shard = int(np.searchsorted(self._shard_firsts, place, side="right")) - 1
        return np.frombuffer(_HEAD.pack(shard, label) + self._values(part, None, row, 1), RECORD)[0]

    def _run(self, first: int, count: int) -> Index:
        found = [np.frombuffer(self._values(part, None, *run), ROW) for part, *run in self._runs(first, count)]
        rows = np.concatenate(found) if found else np.empty(0, ROW)
        shards = np.searchsorted(self._shard_firsts, np.arange(first, first + count), side="right") - 1
        return make_records(rows, self.labels(first, count), shards)

    def _runs(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Return part, first row and number of rows of each part that holds some of the samples."""
        runs = []
        part = bisect_right(self._firsts, first) - 1
        while count > 0:
            row = first - self._firsts[part]
            taken = min(count, self._parts[part].samples - row)
            if taken:
                runs.append((part, row, taken))
            first, count, part = first + taken, count - taken, part + 1
        return runs

    def _values(self, part: int, column: str | None, first: int, count: int) -> bytes:
        """Return the bytes of some rows of a part (None), or of some values of a column."""
        layout = self._layouts.get(part) or self._layout(part)
        try:
            at, kind = layout.place_of(column)
        except KeyError:
            # A column is optional: without labels, an image may have several.
            return NO_LABEL.to_bytes(4, "little", signed=True) * count
        content = self._read_part(part, at + first * kind.itemsize, count * kind.itemsize)
        if len(content) < count * kind.itemsize:
            raise damaged_index(
                self._parts[part].name, f"was cut short while it was read: it ends before row {first + count}"
            )
        return content

    def _layout(self, part: int) -> PartLayout:
        entry = self._parts[part]
        layout = parse_layout(self._read_part(part, 0, HEADER_BYTES), entry.name)
        if (layout.num_rows, layout.num_bytes) != (entry.samples, entry.bytes):
            raise damaged_index(entry.name, f"has {layout.num_rows} samples, the manifest {entry.samples}")
        self._layouts[part] = layout
        return layout


@dataclass(frozen=True)
class StoredIndex:
    """The index of version 1, read by ranges wherever it lies."""

    uri: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int | slice) -> Any:
        """Read a record, or a run of them; raises as records.index.read_part."""
        if isinstance(place, slice):
            first, end, _ = place.indices(self.count)
            return read_part(self.uri, first, max(0, end - first))
        return read_part(self.uri, place, 1)[0]

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """See `SampleIndex`; in version 1 the whole records are read."""
        return np.asarray(read_part(self.uri, first, count)["label"])


def open_samples(manifest: ShardManifest, folder_uri: str) -> SampleIndex:
    """Return the samples of shards, for whoever looks at some: the index is read by ranges where it lies.

    Raises:
        DataError: The parts do not have the samples that the manifest counts.
    """
    if manifest.index is not None:
        return StoredIndex(manifest.index.uri(folder_uri), count_samples(manifest))
    return PartedIndex(manifest, partial(_read_stored, [part.uri(folder_uri) for part in manifest.index_parts]))


def image_of(stored: bytes, manifest: ShardManifest) -> bytes:
    """Return the image file of a sample, of several the first, from the bytes that its record points at.

    Raises:
        DamagedSample: The whole sample holds no image.
    """
    if not manifest.whole_samples:
        return stored
    feature = (manifest.image_field or "").encode() if manifest.fields else IMAGE_FEATURE
    return extract_image(stored, manifest.format, feature)


def count_samples(manifest: ShardManifest) -> int:
    """Return the number of samples of all splits."""
    return sum(split.samples for split in manifest.splits.values())


def check_parts(manifest: ShardManifest) -> int:
    """Return the number of samples of an index in parts, having seen to it that each has its place.

    Raises:
        DataError: A part does not follow the one before it, or they are not as many as the manifest counts.
    """
    end = 0
    for part in manifest.index_parts:
        if part.first != end:
            raise damaged_index(part.name, f"begins at sample {part.first}, the parts before it end at {end}")
        end += part.samples
    if end != (samples := count_samples(manifest)):
        raise DataError(
            f"the parts of the index have {end} samples, the manifest {samples}",
            allowed="the index that the shard stage wrote",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )
    return end


def shard_rows(layout: PartLayout, content: bytes) -> tuple[Array, dict[str, Array]]:
    """Return the rows and columns in what follows the header of a part file that is read whole."""
    rows = np.frombuffer(content, ROW, layout.num_rows)
    columns, at = {}, rows.nbytes
    for name, kind in layout.columns:
        columns[name] = np.frombuffer(content, kind, layout.num_rows, at)
        at += columns[name].nbytes
    return rows, columns


def _read_stored(uris: list[str], part: int, offset: int, size: int) -> bytes:
    try:
        return storage.read_range(uris[part], offset, size) if size else b""
    except OSError as error:
        shown = storage.display(uris[part])
        raise damaged_index(shown, f"cannot be read ({error.strerror or 'it is not there'})") from None
