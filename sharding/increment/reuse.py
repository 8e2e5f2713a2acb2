"""The files of a parent, on both ends of an increment: what planning compares, and what the commit takes over.

`sources.bin` has 8 bytes for every row of the index: what the sample was made of (Reference.identity). `tombstones.bin`
is an index of the samples that lie in listed shards and are gone; nothing here reads it but the next increment, since a
sample without a row in the index cannot be read. Nothing is copied from shard to shard: what is written, is written
from the source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest
from contracts.config import SPLITS, ShardingSection
from contracts.errors import DataError
from records.index import Index, open_index
from sharding.increment.chain import Parent
from sharding.increment.selection import Finished, Match, Selection, Source, find_moved, match, select
from sharding.limits import decode_name, encode_path, name_some
from sharding.plan import KEY_BYTES, make_key
from sharding.sources import Listing

Entry = TypeVar("Entry", bound=FileEntry)

SOURCES_NAME = "sources.bin"
TOMBSTONES_NAME = "tombstones.bin"
# In the folder of an attempt: places in the parent's index that become tombstones.
_GONE_NAME = "gone"


@dataclass(frozen=True)
class Increment:
    """What the commit needs to know about the parent: small, as it travels to the worker that commits."""

    parent_uri: str
    reused: tuple[int, ...]
    """Numbers of the parent's shards that stay, ascending."""
    samples_by_class: tuple[tuple[int, ...], ...]
    """Of the samples in reused shards, for each split."""
    source_bytes: tuple[int, ...]
    """Of the samples in reused shards, for each split."""
    vanished: tuple[int, ...]
    """Labels of classes that the source has no image of any more."""


@dataclass(frozen=True)
class Growth:
    """What an increment is to do."""

    listing: Listing
    """Only what is to be written, labelled in the parent's order of classes."""
    increment: Increment
    selection: Selection

    def describe(self, parent: Parent, num_written: int) -> str:
        """Return a line that says what is reused and what is written."""
        chosen = self.selection
        return (
            f"increment {parent.manifest.generation + 1} on {parent.manifest.fingerprint}: {chosen.num_new} new, "
            f"{chosen.num_changed} changed, {chosen.num_gone} gone; {len(chosen.reused)} shards reused, "
            f"{chosen.num_merged} merged, {chosen.num_compacted} compacted; writes {num_written} shards"
        )

    def leave_tombstones(self, work_uri: str) -> None:
        """Leave for the commit which samples of the parent are gone."""
        storage.publish(storage.join(work_uri, _GONE_NAME), self.selection.tombstones.astype("<u8").tobytes())


def plan_growth(listing: Listing, parent: Parent, section: ShardingSection) -> Growth | None:
    """Compare a source with a parent; None where they have no sample in common.

    Raises:
        DataError: A sample moved to another split.
    """
    source = _read_source(listing)
    finished = _read_finished(parent)
    matched = match(source, finished)
    if not matched.num_kept:
        return None
    _check_splits(listing, source, finished, matched)
    return _grow(listing, parent, source, finished, matched, section)


def replan_growth(listing: Listing, parent: Parent, section: ShardingSection) -> Growth:
    """Do the same for a listing that lost its copies, which may be all that was in common."""
    source = _read_source(listing)
    finished = _read_finished(parent)
    return _grow(listing, parent, source, finished, match(source, finished), section)


def _grow(
    listing: Listing, parent: Parent, source: Source, finished: Finished, matched: Match, section: ShardingSection
) -> Growth:
    chosen = select(
        source,
        finished,
        matched,
        compact_share=section.compact_share,
        target_shard_bytes=section.target_shard_bytes,
        min_shards=section.min_shards,
    )
    known = [decode_name(name) for name in parent.manifest.classes]
    classes = (*known, *(name for name in listing.classes if name not in set(known)))
    places = {name: place for place, name in enumerate(classes)}
    labels = [places[name] for name in listing.classes]
    fresh = []
    samples_by_class = np.zeros((len(SPLITS), len(classes)), np.int64)
    source_bytes = [0] * len(SPLITS)
    seen = set()
    for reference, is_fresh in zip(listing.references, chosen.fresh, strict=True):
        own = sorted(labels[label] for label in reference.labels)
        seen.update(own)
        if is_fresh:
            fresh.append(reference._replace(label=own[0], more_labels=tuple(own[1:])))
            continue
        source_bytes[reference.split] += reference.size
        for label in own:
            samples_by_class[reference.split, label] += 1
    increment = Increment(
        parent.uri,
        tuple(chosen.reused.tolist()),
        tuple(tuple(counts) for counts in samples_by_class.tolist()),
        tuple(source_bytes),
        tuple(label for label in range(len(known)) if label not in seen),
    )
    return Growth(dataclasses.replace(listing, classes=classes, references=tuple(fresh)), increment, chosen)


def _check_splits(listing: Listing, source: Source, finished: Finished, matched: Match) -> None:
    places, before = find_moved(source, finished, matched)
    if not len(places):
        return
    moved = [
        f"{encode_path(listing.references[at].path)} ({SPLITS[old]} -> {SPLITS[listing.references[at].split]})"
        for at, old in zip(places.tolist(), before.tolist(), strict=True)
    ]
    raise DataError(
        f"{storage.display(listing.uri)}: {len(moved)} samples moved to another split: {name_some(moved)}",
        allowed="old samples keep their split: what was trained on must not be tested on",
        todo="give them their old split back, or set sharding.incremental=false for a full reshard",
    )


def _read_source(listing: Listing) -> Source:
    references = listing.references
    return Source(
        np.frombuffer(b"".join(make_key(one.path) for one in references), f"S{KEY_BYTES}"),
        np.frombuffer(b"".join(one.identity(listing.classes) for one in references), "<u8"),
        np.fromiter((one.split for one in references), np.uint8, len(references)),
        np.fromiter((one.size for one in references), np.int64, len(references)),
    )


def _read_finished(parent: Parent) -> Finished:
    manifest = parent.manifest
    with open_index_at(manifest.index.uri(parent.uri)) as index:
        # Bytes of one length compare as S16 as they are; a void type cannot be sorted.
        keys = np.ascontiguousarray(index["key"]).view(f"S{KEY_BYTES}")
        shards = index["shard"].astype(np.int64)
    return Finished(
        keys,
        read_sources(parent.uri, manifest),
        shards,
        np.array([SPLITS.index(entry.split) for entry in manifest.shards], np.uint8),
        np.array([entry.tombstones for entry in manifest.shards], np.int64),
    )


def read_sources(folder_uri: str, manifest: ShardManifest) -> npt.NDArray[np.uint64]:
    """Return what the samples of a finished manifest were made of: [N], in the order of its index."""
    assert manifest.sources is not None, "no parent"
    return np.frombuffer(storage.read_bytes(manifest.sources.uri(folder_uri)), "<u8")


@contextlib.contextmanager
def open_index_at(uri: str) -> Iterator[Index]:
    """Map the index at a URI while the block runs; one in a bucket is copied here first."""
    if storage.is_local(uri):
        yield open_index(storage.local_path(uri))
        return
    descriptor, name = tempfile.mkstemp()
    copy = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as target, storage.open_read(uri) as stream:
            shutil.copyfileobj(stream, target)
        yield open_index(copy)
    finally:
        copy.unlink()


@dataclass(frozen=True)
class Reused:
    """A shard of the parent in the new manifest."""

    entry: ShardEntry
    """As the parent's, with the folder it is in, and tombstones; `first` is still to be set."""
    rows: Index
    """Its part of the index, without what is gone; `shard` is still to be set."""
    sources: bytes
    """Its part of sources.bin."""
    buried: Index
    """Its tombstones."""
    newly_gone: bool
    """Whether there are more of them than in the parent."""
    neighbour: FileEntry | None
    """The index that other libraries read."""


class ReusedShards:
    """What an increment takes over from its parent."""

    def __init__(self, increment: Increment, work_uri: str, index: Index) -> None:
        self._increment = increment
        self._uri = increment.parent_uri
        self._index = index
        self.manifest = ShardManifest.load(self._uri)
        self._sources = read_sources(self._uri, self.manifest)
        self._is_gone = np.zeros(len(index), bool)
        self._is_gone[np.frombuffer(storage.read_bytes(storage.join(work_uri, _GONE_NAME)), "<u8")] = True
        self._buried: Index = np.empty(0, index.dtype)
        if self.manifest.tombstones is not None:
            with open_index_at(self.manifest.tombstones.uri(self._uri)) as buried:
                self._buried = np.array(buried)
        self._neighbours = {entry.name: entry for entry in self.manifest.neighbours}

    def of_split(self, split: int) -> Iterator[Reused]:
        """Yield the shards of a split, in the parent's order."""
        for number in self._increment.reused:
            if self.manifest.shards[number].split == SPLITS[split]:
                yield self._open(number)

    def _open(self, number: int) -> Reused:
        entry = self.manifest.shards[number]
        own = slice(entry.first, entry.first + entry.samples)
        rows, gone = self._index[own], self._is_gone[own]
        buried = np.concatenate([self._buried[self._buried["shard"] == number], rows[gone]])
        neighbour = self._neighbours.get(entry.name.rpartition(".")[0] + ".idx")
        return Reused(
            self._move(entry).model_copy(update={"samples": int((~gone).sum()), "tombstones": len(buried)}),
            np.array(rows[~gone]),
            self._sources[own][~gone].tobytes(),
            np.sort(buried, order="offset"),
            bool(gone.any()),
            self._move(neighbour) if neighbour is not None else None,
        )

    def _move(self, entry: Entry) -> Entry:
        """Return an entry of the parent as its child lists it."""
        return entry if entry.folder else entry.model_copy(update={"folder": self._uri.rpartition("/")[2]})


def without_tombstones(content: bytes, buried: Index, shard_format: str) -> bytes:
    """Return the index that other libraries read of a shard, without the samples that are gone.

    Args:
        content: The whole index of the file, or one that lacks some of them already.
        buried: Index of the samples that are gone.
        shard_format: As `ShardManifest.format`.
    """
    offsets = buried["offset"]
    lines = content.decode().splitlines()
    if shard_format == "webdataset":
        gone = set(offsets.tolist())
        kept = [line for line in lines[1:] if int(line.split(" ", 2)[1]) not in gone]
        lines = [f"v1.2 {len(kept)}", *kept]
    else:
        # A line is the start and the length of a record, in which the image lies.
        lines = [line for line in lines if not _holds_any(offsets, *map(int, line.split()))]
    return "".join(f"{line}\n" for line in lines).encode()


def _holds_any(offsets: npt.NDArray[np.uint64], start: int, length: int) -> bool:
    first = int(np.searchsorted(offsets, start))
    return first < len(offsets) and int(offsets[first]) < start + length
