"""Files of packed references: how a listing lies on disk, so that no process holds it.

Each process that lists writes a stretch of the listing: sorted files, and counts of what is in them. Stretches in
order are the whole listing; `repack` cuts it into parts of `PART_REFERENCES`, wherever the stretches happened to end:
the same source gives the same parts. They are copied into the work folder of the output, where workers read them: the
process that runs the graph need not hold them.

The format is Python's own marshal (fast, and names are bytes; launcher and workers run the same Python, as Beam demands
anyway), compressed: a runner holds references several times over, and a shuffle is paid by size.
"""

from __future__ import annotations

import marshal
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.config import SPLITS
from sharding.sources.reference import NO_CLASS, Reference

# References of a part: one to two MB on disk, 15 MB in the process that unpacks it.
PART_REFERENCES = 1 << 15
# Parts that are copied at a time.
_COPY_THREADS = 4
# Ignored paths that are kept by name; all are counted.
MAX_IGNORED = 10_000
# A reference as a plain tuple; of named fields followed by cells and more_bytes, which others do without.
Fields = tuple[Any, ...]
PLAIN_FIELDS = 7
# Paths and times have much in common: the fastest level takes most of it out.
_LEVEL = 1
# Bytes that are compressed to see what it brings, and the share that must be left at most.
_SAMPLE_BYTES, _WORTH = 1 << 14, 0.5
# Of marshal: later ones write an object once that is referred to several times, so equal records may give other bytes.
_MARSHAL_VERSION = 2
# Rows may be long: bytes of cells in a part.
_PART_CELL_BYTES = 1 << 25


def pack(references: Iterable[Reference]) -> bytes:
    """Return references as one blob."""
    # marshal knows tuples, not what is derived from them.
    return pack_fields([tuple(one) if one.cells else one[:PLAIN_FIELDS] for one in references])


def pack_fields(references: list[Fields]) -> bytes:
    """Return references that are plain tuples as one blob."""
    return _pack(references)


def unpack(blob: bytes) -> list[Reference]:
    """Return the references of a blob."""
    return [Reference(*fields) for fields in _unpack(blob)]


def unpack_fields(blob: bytes) -> list[Fields]:
    """Return the references of a blob as plain tuples, which take half the time to make."""
    return _unpack(blob)


def read_file(path: Path) -> list[Reference]:
    """Return the references in one file."""
    return unpack(path.read_bytes())


def read_fields(path: Path) -> list[Fields]:
    """Return the references in one file as plain tuples, which take half the time to make."""
    return _unpack(path.read_bytes())


def publish_parts(parts: Sequence[Path], folder_uri: str) -> None:
    """Copy the parts of a listing to a folder.

    Equal listings have equal parts, so whatever another run of the same work left or leaves there is the same.
    """

    def publish(number: int) -> None:
        storage.replace(_part_uri(folder_uri, number), parts[number].read_bytes())

    with ThreadPoolExecutor(_COPY_THREADS) as threads:
        # What one of them raises is raised here.
        deque(threads.map(publish, range(len(parts))), maxlen=0)


def read_part(folder_uri: str, number: int) -> list[Reference]:
    """Return the references in one part that was copied to a folder."""
    return unpack(storage.read_bytes(_part_uri(folder_uri, number)))


def read_part_fields(folder_uri: str, number: int) -> list[Fields]:
    """Return the references in one part that was copied to a folder as plain tuples."""
    return _unpack(storage.read_bytes(_part_uri(folder_uri, number)))


def _part_uri(folder_uri: str, number: int) -> str:
    return storage.join(folder_uri, f"references-{number:05d}")


def _pack(records: list[Any]) -> bytes:
    content = marshal.dumps(records, _MARSHAL_VERSION)
    return zlib.compress(content, _choose_level(content))


def _choose_level(content: bytes) -> int:
    """Return the level of compression: none for what has little in common, such as numbers."""
    middle = max(0, (len(content) - _SAMPLE_BYTES) // 2)
    sample = content[middle : middle + _SAMPLE_BYTES]
    return _LEVEL if len(zlib.compress(sample, _LEVEL)) < _WORTH * len(sample) else 0


def _unpack(blob: bytes) -> list[Any]:
    records: list[Any] = marshal.loads(zlib.decompress(blob))
    return records


@dataclass
class Names:
    """Names of which the first are kept, in order, and all are counted."""

    most: int
    first: list[bytes] = field(default_factory=list)
    count: int = 0

    def add(self, name: bytes) -> None:
        """Take in a name."""
        self.extend([name], 1)

    def extend(self, names: Iterable[bytes], count: int) -> None:
        """Take in `count` names, of which `names` are the first."""
        self.first += names
        self.count += count
        # Not for every name: sorting is what costs.
        if len(self.first) > 2 * self.most:
            self.first = self.sorted()

    def sorted(self) -> list[bytes]:
        """Return the first names in order."""
        return sorted(self.first)[: self.most]


@dataclass
class Stretch:
    """What was found in one stretch of a listing."""

    files: list[tuple[Path, int]] = field(default_factory=list)
    """Files in order, and the number of references in each."""
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of files by (split, label)."""
    split_files: list[int] = field(default_factory=lambda: [0] * len(SPLITS))
    split_bytes: list[int] = field(default_factory=lambda: [0] * len(SPLITS))
    ignored: Names = field(default_factory=lambda: Names(MAX_IGNORED))
    """No images by their name, or outside of class folders."""
    outside: Names = field(default_factory=lambda: Names(10))
    """Images outside of class folders."""
    seen: set[int] = field(default_factory=set)
    """Labels of the class folders in which there was anything at all."""


class StretchWriter:
    """Writes the references of one stretch, as they come, in order.

    Args:
        folder: Of this machine.
        name: Start of the files' names: another one for each stretch.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.stretch = Stretch()
        self._folder = folder
        self._name = name
        self._waiting: list[Fields] = []
        self._cell_bytes = 0

    def add(self, fields: Fields) -> None:
        """Take in the next one, as a plain tuple."""
        self._waiting.append(fields)
        if len(fields) > PLAIN_FIELDS:
            self._cell_bytes += len(fields[PLAIN_FIELDS])
        if len(self._waiting) == PART_REFERENCES or self._cell_bytes >= _PART_CELL_BYTES:
            self._write()

    def close(self) -> Stretch:
        """Write what is left, and return what was written."""
        if self._waiting:
            self._write()
        return self.stretch

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._cell_bytes = 0
        found = self.stretch
        path = self._folder / f"{self._name}-{len(found.files):05d}"
        path.write_bytes(_pack(waiting))
        found.files.append((path, len(waiting)))
        found.counts.update(map(itemgetter(2, 1), waiting))
        for _, _, split, size, _, _, more_labels, *more in waiting:
            found.split_files[split] += 1
            found.split_bytes[split] += size + (more[1] if more else 0)
            for label in more_labels:
                found.counts[split, label] += 1


@dataclass(frozen=True)
class Piece:
    """References of one file that go into a part."""

    path: Path
    first: int
    end: int
    is_whole: bool


def cut_into_parts(files: Sequence[tuple[Path, int]]) -> list[list[Piece]]:
    """Return, for each part, what it is made of."""
    parts: list[list[Piece]] = []
    room = 0
    for path, count in files:
        first = 0
        while first < count:
            if room == 0:
                parts.append([])
                room = PART_REFERENCES
            end = min(count, first + room)
            parts[-1].append(Piece(path, first, end, end - first == count))
            room -= end - first
            first = end
    return parts


@dataclass(frozen=True)
class Changes:
    """What becomes of references on their way into parts."""

    labels: Sequence[int] = ()
    """New label for each old one; empty: none changes."""
    splits: Mapping[bytes, int] = field(default_factory=dict)
    """New split of the paths that change theirs."""

    def save(self, path: Path) -> None:
        """Leave them for the processes that write parts."""
        path.write_bytes(marshal.dumps((list(self.labels), dict(self.splits))))


@lru_cache(maxsize=1)
def load_changes(path: Path) -> Changes:
    """Return what `Changes.save` left."""
    return Changes(*marshal.loads(path.read_bytes()))


def repack(target: Path, pieces: Sequence[Piece], changes_path: Path | None) -> Path:
    """Write a part; return its path.

    Args:
        target: The part.
        pieces: What it is made of.
        changes_path: Of `Changes`; None: there are none.
    """
    if changes_path is None and len(pieces) == 1 and pieces[0].is_whole:
        return pieces[0].path.rename(target)
    listed: list[Fields] = []
    for piece in pieces:
        listed += read_fields(piece.path)[piece.first : piece.end]
    if changes_path is not None:
        changes = load_changes(changes_path)
        labels, splits = changes.labels, changes.splits
        listed = [
            (path, labels[label] if labels and label != NO_CLASS else label, splits.get(path, split), *others)
            for path, label, split, *others in listed
        ]
    target.write_bytes(_pack(listed))
    return target
