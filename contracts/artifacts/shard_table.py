"""The packed table of shards: the entries of a manifest with more shards than a document should list.

    header      64 bytes: magic, version, bytes of an entry, number of entries, bytes of the texts
    texts       JSON: the names of the splits and of the folders, which the entries name by their number
    entries     44 bytes each, little-endian, in the order of the index
    names       the file names, one after another

`images` and `changed` of a shard are not in it: the manifest has their totals. An entry becomes a ShardEntry when it is
asked for; who needs one number of every shard takes `shard_numbers`, or `shard_columns` where NumPy is installed.
"""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

from contracts import storage
from contracts.artifacts.document import FileEntry
from contracts.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from contracts.artifacts.shards import ShardEntry

TABLE_NAME = "shards.bin"
# A document of so many entries is read in a tenth of a second, and has 3 MB.
MOST_LISTED = 10_000

_MAGIC = b"SHARDTBL"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32x")
# In the order of _FIELDS.
_ENTRY = struct.Struct("<QQQIIIIHBB")
_FIELDS = [
    ("first", "<u8"),
    ("bytes", "<u8"),
    ("name_end", "<u8"),  # in the names; it begins where the one before it ends
    ("samples", "<u4"),
    ("tombstones", "<u4"),
    ("crc32c", "<u4"),
    ("rows_crc32c", "<u4"),
    ("folder", "<u2"),
    ("split", "u1"),
    ("has_rows_crc32c", "u1"),
]
# Entries that were asked for, kept: a reader asks for the same few again and again.
_MOST_KEPT = 1024


@dataclass(frozen=True)
class ShardColumns:
    """One array [num_shards] of each number of the shards, in the order of the manifest."""

    first: npt.NDArray[np.int64]
    """Place of the shard's first sample in the index."""
    samples: npt.NDArray[np.int64]
    tombstones: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    split: npt.NDArray[np.uint8]
    """Place in `splits`."""
    splits: tuple[str, ...]

    def of_split(self, split: str) -> npt.NDArray[np.int64]:
        """Return the places of the shards of a split."""
        import numpy as np

        return np.flatnonzero(self.is_of(split))

    def is_of(self, split: str) -> npt.NDArray[np.bool_]:
        """Return whether each shard is of a split."""
        import numpy as np

        number = self.splits.index(split) if split in self.splits else len(self.splits)
        return np.asarray(self.split == number)


class ShardNumbers(NamedTuple):
    """The numbers of one shard; fields as in ShardEntry."""

    split: str
    first: int
    samples: int
    tombstones: int
    bytes: int


class ShardTable(Sequence["ShardEntry"]):
    """The entries of a packed table; `parse_table` makes one.

    Args:
        entries: As the table has them.
        names: All file names, one after another.
        splits: Their names.
        folders: Their names.
    """

    def __init__(self, entries: bytes, names: bytes, splits: Sequence[str], folders: Sequence[str]) -> None:
        self._entries, self._names = entries, names
        self._splits, self._folders = tuple(splits), tuple(folders)
        self._kept: dict[int, ShardEntry] = {}

    def __len__(self) -> int:
        return len(self._entries) // _ENTRY.size

    @overload
    def __getitem__(self, place: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, place: slice) -> list[ShardEntry]: ...
    def __getitem__(self, place: int | slice) -> ShardEntry | list[ShardEntry]:
        if isinstance(place, slice):
            return [self._make(number) for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        entry = self._kept.get(number)
        if entry is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            entry = self._kept[number] = self._make(number)
        return entry

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self._make, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ShardTable):
            return self._parts() == other._parts()
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}

    def numbers(self) -> Iterator[ShardNumbers]:
        """Yield the numbers of each shard."""
        for first, size, _, samples, tombstones, _, _, _, split, _ in _ENTRY.iter_unpack(self._entries):
            yield ShardNumbers(self._splits[split], first, samples, tombstones, size)

    @property
    def columns(self) -> ShardColumns:
        """The numbers of all shards."""
        import numpy as np

        entries = np.frombuffer(self._entries, _FIELDS)
        first, samples, tombstones, sizes = (
            entries[name].astype(np.int64) for name in ("first", "samples", "tombstones", "bytes")
        )
        return ShardColumns(first, samples, tombstones, sizes, entries["split"].copy(), self._splits)

    def _make(self, number: int) -> ShardEntry:
        from contracts.artifacts.shards import ShardEntry

        at = number * _ENTRY.size
        first, size, name_end, samples, tombstones, crc32c, rows_crc32c, folder, split, has_rows = _ENTRY.unpack_from(
            self._entries, at
        )
        begin = _ENTRY.unpack_from(self._entries, at - _ENTRY.size)[2] if number else 0
        return ShardEntry(
            name=self._names[begin:name_end].decode(),
            bytes=size,
            crc32c=f"{crc32c:08x}",
            folder=self._folders[folder],
            split=self._splits[split],
            first=first,
            samples=samples,
            tombstones=tombstones,
            rows_crc32c=f"{rows_crc32c:08x}" if has_rows else "",
        )

    def _parts(self) -> tuple[object, ...]:
        return self._entries, self._names, self._splits, self._folders


def shard_numbers(shards: Sequence[ShardEntry]) -> Iterator[ShardNumbers]:
    """Yield the numbers of each shard of a manifest, however it holds them; NumPy is not needed."""
    if isinstance(shards, ShardTable):
        return shards.numbers()
    return (ShardNumbers(one.split, one.first, one.samples, one.tombstones, one.bytes) for one in shards)


def shard_columns(shards: Sequence[ShardEntry]) -> ShardColumns:
    """Return the numbers of all shards of a manifest as arrays, however it holds them; to be kept by who asks."""
    import numpy as np

    if isinstance(shards, ShardTable):
        return shards.columns
    splits = tuple(dict.fromkeys(entry.split for entry in shards))
    place = {split: number for number, split in enumerate(splits)}
    rows = [(place[split], *numbers) for split, *numbers in shard_numbers(shards)]
    split, first, samples, tombstones, sizes = np.array(rows, dtype=np.int64).reshape(len(rows), 5).T
    return ShardColumns(first, samples, tombstones, sizes, split.astype(np.uint8), splits)


def pack_table(entries: Sequence[ShardEntry]) -> bytes:
    """Return the packed table of some shards; equal entries are equal bytes.

    Args:
        entries: Of all shards of a manifest, in its order.
    """
    splits = list(dict.fromkeys(entry.split for entry in entries))
    folders = list(dict.fromkeys(entry.folder for entry in entries))
    split_number = {split: number for number, split in enumerate(splits)}
    folder_number = {folder: number for number, folder in enumerate(folders)}
    packed, names = bytearray(), bytearray()
    for entry in entries:
        names += entry.name.encode()
        packed += _ENTRY.pack(
            entry.first,
            entry.bytes,
            len(names),
            entry.samples,
            entry.tombstones,
            int(entry.crc32c, 16),
            int(entry.rows_crc32c or "0", 16),
            folder_number[entry.folder],
            split_number[entry.split],
            bool(entry.rows_crc32c),
        )
    texts = json.dumps({"splits": splits, "folders": folders}).encode()
    return _HEADER.pack(_MAGIC, _VERSION, _ENTRY.size, len(entries), len(texts)) + texts + packed + names


def parse_table(content: bytes, *, where: str) -> ShardTable:
    """Return the entries of a packed table; `where` is how errors call it.

    Raises:
        DataError: It is no packed table, is of a newer version, or is not as long as it says.
    """
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise _damaged(where, "is no table of shards")
    _, version, entry_bytes, count, texts_bytes = _HEADER.unpack_from(content)
    if version != _VERSION or entry_bytes != _ENTRY.size:
        raise _damaged(where, f"has version {version} with {entry_bytes} bytes a shard, not {_VERSION}")
    at = _HEADER.size + texts_bytes
    end = at + count * _ENTRY.size
    if len(content) < end:
        raise _damaged(where, f"has {len(content)} bytes, {count} shards take {end}")
    entries, names = content[at:end], content[end:]
    if (_ENTRY.unpack_from(entries, len(entries) - _ENTRY.size)[2] if count else 0) != len(names):
        raise _damaged(where, f"has {len(names)} bytes of names, its last shard says otherwise")
    texts = json.loads(content[_HEADER.size : at])
    return ShardTable(entries, names, texts["splits"], texts["folders"])


def load_table(folder_uri: str, entry: FileEntry) -> ShardTable:
    """Read the table of a manifest, and compare it with what the manifest says of it.

    Args:
        folder_uri: Folder of the manifest.
        entry: The manifest's, of the table.

    Raises:
        DataError: It is missing, or has other bytes.
    """
    uri = entry.uri(folder_uri)
    shown = storage.display(uri)
    try:
        content = storage.read_bytes(uri)
    except (FileNotFoundError, NotADirectoryError):
        raise _damaged(shown, "is missing") from None
    return check_table(content, entry, where=shown)


def check_table(content: bytes, entry: FileEntry, *, where: str) -> ShardTable:
    """Return the entries of a packed table that was read, compared with what its manifest says of it; as `load_table`.

    Raises:
        DataError: It has other bytes.
    """
    found = len(content), storage.crc32c(content)
    if found != (entry.bytes, entry.crc32c):
        raise _damaged(where, "has {} bytes and crc32c {}, not as its manifest says".format(*found))
    return parse_table(content, where=where)


def _damaged(where: str, what: str) -> DataError:
    return DataError(
        f"the table of shards {where} {what}",
        allowed="the table that the shard stage wrote",
        todo="run the shard stage again with --fresh, or copy the folder of shards again",
    )
