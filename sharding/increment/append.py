"""What an increment appends, and what is gone: a source compared with the index of an earlier manifest, its parent.

A sample stays where it is when its path is there and it is made of the same file and labels (Reference.identity). All
others are new: they are written into shards of their own, planned as a full reshard plans its samples. Samples that are
gone or changed become tombstones: they stay in their shards, and the index leaves them out. So an increment writes what
is new, and the parts of the index that something is gone from. Nothing is merged or compacted on the way: that is a
command of its own (`shardline data compact`), which writes every sample again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import SPLITS
from contracts.errors import DataError
from records.index_parts import read_layout, read_part_column, read_part_rows
from sharding.increment.chain import Parent
from sharding.job import Append
from sharding.limits import decode_name, encode_path, name_some
from sharding.plan import KEY_BYTES, make_key
from sharding.sources import Listing, Reference
from sharding.sources.parts import StretchWriter

Keys = npt.NDArray[np.bytes_]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Growth:
    """What an increment is to do."""

    listing: Listing
    """Only what is to be written, labelled in the parent's order of classes."""
    append: Append
    gone: npt.NDArray[np.uint64]
    """Places in the parent's index of samples that become tombstones, ascending."""

    def describe(self, num_written: int) -> str:
        """Return a line that says what is reused and what is written."""
        append = self.append
        how = "compacts" if append.compacts else "increment"
        return (
            f"{how} {append.generation} on {append.parent}: {append.num_new} new, {append.num_changed} changed, "
            f"{append.num_gone} gone; writes {num_written} shards"
        )


@dataclass(frozen=True)
class _Finished:
    """The samples of a finished manifest: arrays [M] in the order of its index."""

    keys: Keys
    sources: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.uint8]


def plan_growth(listing: Listing, parent: Parent, scratch: Path, *, compacts: bool) -> Growth | None:
    """Compare a source with a parent; None where they have no sample in common.

    Args:
        listing: Of the source.
        parent: An earlier manifest of the same configuration.
        scratch: Folder for the listing of what is new.
        compacts: Write every sample again, in the parent's order of classes.

    Raises:
        DataError: A sample moved to another split.
    """
    keys, sources, splits = _read_source(listing)
    finished = _read_finished(parent)
    order = np.argsort(finished.keys, kind="stable")
    at = np.searchsorted(finished.keys, keys, sorter=order)
    places = order[np.minimum(at, len(order) - 1)] if len(order) else np.zeros(len(keys), np.int64)
    found = finished.keys[places] == keys if len(order) else np.zeros(len(keys), bool)
    same = found.copy()
    same[found] = finished.sources[places[found]] == sources[found]
    if not same.any():
        return None
    moved = np.zeros(len(keys), bool)
    moved[found] = finished.splits[places[found]] != splits[found]
    if moved.any():
        raise _moved(listing, moved, places, finished)
    is_kept = np.zeros(len(finished.keys), bool)
    kept = np.zeros(len(keys), bool) if compacts else same
    is_kept[places[kept]] = True

    known = [decode_name(name) for name in parent.manifest.classes]
    places_of = {name: place for place, name in enumerate(known)}
    for name in listing.classes:
        places_of.setdefault(name, len(places_of))
    labels = [places_of[name] for name in listing.classes]
    samples_by_class = np.zeros((len(SPLITS), len(places_of)), np.int64)
    source_bytes = [0] * len(SPLITS)
    seen: set[int] = set()

    def fresh() -> Iterator[Reference]:
        for place, reference in enumerate(listing.references()):
            own = sorted(labels[label] for label in reference.labels)
            seen.update(own)
            if not kept[place]:
                yield reference._replace(label=own[0], more_labels=tuple(own[1:]))
                continue
            source_bytes[reference.split] += reference.size
            for label in own:
                samples_by_class[reference.split, label] += 1

    new = _spill(fresh(), scratch, listing, tuple(places_of))
    num_found = int(found.sum())
    append = Append(
        parent=parent.manifest.fingerprint,
        generation=parent.manifest.generation + 1,
        compacts=compacts,
        samples_by_class=samples_by_class.tolist(),
        source_bytes=source_bytes,
        vanished=[label for label in range(len(known)) if label not in seen],
        num_new=len(keys) - num_found,
        num_changed=num_found - int(same.sum()),
        num_gone=len(finished.keys) - num_found,
    )
    return Growth(new, append, np.flatnonzero(~is_kept).astype("<u8"))


def _spill(fresh: Iterator[Reference], scratch: Path, listing: Listing, classes: tuple[bytes, ...]) -> Listing:
    """Return the listing of some references of another, in other classes."""
    writer = StretchWriter(scratch, "new")
    for reference in fresh:
        writer.add(reference)
    stretch = writer.close()
    counts = tuple([stretch.counts[split, label] for label in range(len(classes))] for split in range(len(SPLITS)))
    return dataclasses.replace(
        listing,
        classes=classes,
        num_files=sum(stretch.split_files),
        total_bytes=sum(stretch.split_bytes),
        counts=counts,
        split_bytes=tuple(stretch.split_bytes),
        parts=tuple(path for path, _ in stretch.files),
    )


def _moved(listing: Listing, moved: Bools, places: Integers, finished: _Finished) -> DataError:
    named = [
        f"{encode_path(one.path)} ({SPLITS[finished.splits[places[place]]]} -> {SPLITS[one.split]})"
        for place, one in enumerate(listing.references())
        if moved[place]
    ]
    return DataError(
        f"{storage.display(listing.uri)}: {len(named)} samples moved to another split: {name_some(named)}",
        allowed="old samples keep their split: what was trained on must not be tested on",
        todo="give them their old split back, or set sharding.incremental=false for a full reshard",
    )


def _read_source(listing: Listing) -> tuple[Keys, npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Return keys, identities and splits of the samples of a source: [N] each, 25 bytes a sample."""
    keys, sources, splits = (np.empty(listing.num_files, kind) for kind in (f"S{KEY_BYTES}", "<u8", np.uint8))
    for place, reference in enumerate(listing.references()):
        keys[place] = make_key(reference.path)
        sources[place] = int.from_bytes(reference.identity(listing.classes), "little")
        splits[place] = reference.split
    return keys, sources, splits


def _read_finished(parent: Parent) -> _Finished:
    keys, sources, splits = [], [], []
    for part in parent.manifest.index_parts:
        uri = part.uri(parent.uri)
        layout = read_layout(uri)
        rows = read_part_rows(uri, layout, 0, part.samples)
        # Bytes of one length compare as S16 as they are; a void type cannot be sorted.
        keys.append(np.ascontiguousarray(rows["key"]).view(f"S{KEY_BYTES}"))
        sources.append(read_part_column(uri, layout, "source", 0, part.samples))
        splits.append(np.full(part.samples, _split_of(parent.manifest, part.first), np.uint8))
    return _Finished(
        np.concatenate([np.empty(0, f"S{KEY_BYTES}"), *keys]),
        np.concatenate([np.empty(0, "<u8"), *sources]),
        np.concatenate([np.empty(0, np.uint8), *splits]),
    )


def _split_of(manifest: ShardManifest, place: int) -> int:
    """Return the split that a place of the index is in: a part holds samples of one split."""
    for split, name in enumerate(SPLITS):
        entry = manifest.splits[name]
        if entry.first <= place < entry.first + entry.samples:
            return split
    raise IndexError(place)
