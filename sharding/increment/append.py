"""What an increment appends, and what is gone: a source compared with the index of an earlier manifest, its parent.

A sample stays where it is when its path is there and it is made of the same file and labels (Reference.identity). All
others are new: they are written into shards of their own, planned as a full reshard plans its samples. Samples that are
gone or changed become tombstones: they stay in their shards, and the index leaves them out. So an increment writes what
is new, and the parts of the index that something is gone from. Nothing is merged on the way: a full reshard does that.
"""

from __future__ import annotations

import dataclasses
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
from sharding.sources import Listing
from sharding.sources.parts import StretchWriter
from sharding.sources.reference import NO_CLASS

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
    compared: tuple[Path, ...]
    """Files of references that stay and are as long as one that is written: it may be a copy of them."""

    def describe(self, num_written: int) -> str:
        """Return a line that says what is reused and what is written."""
        append = self.append
        return (
            f"increment on {append.parent}: {append.num_new} new, {append.num_changed} changed, "
            f"{append.num_gone} gone; writes {num_written} shards"
        )


@dataclass(frozen=True)
class _Samples:
    """Samples of a source in the order of its listing, or of a finished manifest in that of its index: arrays [N]."""

    keys: Keys
    sources: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.uint8]


def plan_growth(listing: Listing, parent: Parent, scratch: Path) -> Growth | None:
    """Compare a source with a parent; None where they have no sample in common.

    Args:
        listing: Of the source.
        parent: An earlier manifest of the same configuration.
        scratch: Folder for the listing of what is new.

    Raises:
        DataError: The source gives an old sample another split.
    """
    now, sizes = _read_source(listing)
    finished = _read_finished(parent)
    if not len(finished.keys):
        return None
    places, found, same = _compare(now, finished)
    if not found.any():
        return None
    moved = found & (finished.splits[places] != now.splits)
    if listing.splits_given and moved.any():
        raise _moved(listing, moved, places, finished)
    # Where the source says nothing of splits, an old sample keeps its own: sharding.stratify may have chosen it.
    splits = np.where(found, finished.splits[places], now.splits)
    gone = np.ones(len(finished.keys), bool)
    gone[places[same]] = False
    is_compared = same & np.isin(sizes, np.unique(sizes[~same]))
    new, compared, append = _divide(listing, parent, scratch, same, is_compared, splits)
    num_found = int(found.sum())
    counts = {
        "num_new": len(found) - num_found,
        "num_changed": num_found - int(same.sum()),
        "num_gone": len(finished.keys) - num_found,
    }
    return Growth(new, append.model_copy(update=counts), np.flatnonzero(gone).astype("<u8"), compared)


def _compare(now: _Samples, finished: _Samples) -> tuple[Integers, Bools, Bools]:
    """Return for each sample of a source its place in what is finished, whether it is there, and is the same."""
    order = np.argsort(finished.keys, kind="stable")
    places = order[np.minimum(np.searchsorted(finished.keys, now.keys, sorter=order), len(order) - 1)]
    found = finished.keys[places] == now.keys
    return places, found, found & (finished.sources[places] == now.sources)


def _divide(
    listing: Listing, parent: Parent, scratch: Path, stays: Bools, is_compared: Bools, splits: npt.NDArray[np.uint8]
) -> tuple[Listing, tuple[Path, ...], Append]:
    """Return the listing of what is written, files of what it is compared with, and sums over what stays.

    Args:
        listing: Of the source.
        parent: As for `plan_growth`.
        scratch: As for `plan_growth`.
        stays: [N] whether a sample stays where it is.
        is_compared: [N] whether a sample that stays is as long as one that is written.
        splits: [N] the split of each sample.
    """
    known = [decode_name(name) for name in parent.manifest.classes]
    places = {name: place for place, name in enumerate(known)}
    for name in listing.classes:
        places.setdefault(name, len(places))
    labels = [places[name] for name in listing.classes]
    samples_by_class = [[0] * len(places) for _ in SPLITS]
    source_bytes = [0] * len(SPLITS)
    seen: set[int] = set()
    written, compared = StretchWriter(scratch, "new"), StretchWriter(scratch, "compared")
    for place, reference in enumerate(listing.references()):
        own = sorted(labels[label] for label in reference.labels)
        seen.update(own)
        split = int(splits[place])
        if stays[place]:
            source_bytes[split] += reference.source_bytes
            for label in own:
                samples_by_class[split][label] += 1
            if not is_compared[place]:
                continue
        path, _, _, size, generation, content_hash, _, *named = reference
        label, *more_labels = own or [NO_CLASS]
        fields = (path, label, split, size, generation, content_hash, tuple(more_labels))
        (compared if stays[place] else written).add((*fields, *named) if reference.cells else fields)
    new, beside = written.close(), compared.close()
    append = Append(
        parent=parent.manifest.fingerprint,
        samples_by_class=samples_by_class,
        source_bytes=source_bytes,
        vanished=[label for label in range(len(known)) if label not in seen],
        num_kept=int(stays.sum()),
        num_compared=sum(count for _, count in beside.files),
        num_compared_parts=len(beside.files),
        num_new=0,
        num_changed=0,
        num_gone=0,
    )
    listed = dataclasses.replace(
        listing,
        classes=tuple(places),
        num_files=sum(new.split_files),
        total_bytes=sum(new.split_bytes),
        counts=tuple([new.counts[split, label] for label in range(len(places))] for split in range(len(SPLITS))),
        split_bytes=tuple(new.split_bytes),
        split_files=tuple(new.split_files),
        vocabularies=_extend(parent.manifest, listing.vocabularies),
        parts=tuple(path for path, _ in new.files),
    )
    return listed, tuple(path for path, _ in beside.files), append


def _extend(manifest: ShardManifest, vocabularies: dict[str, tuple[bytes, ...]]) -> dict[str, tuple[bytes, ...]]:
    """Return the classes of further fields: new ones come after the parent's, whose places are in its shards."""
    known = {name: [decode_name(one) for one in manifest.fields[name].classes] for name in vocabularies}
    return {name: tuple(dict.fromkeys((*known[name], *names))) for name, names in vocabularies.items()}


def _moved(listing: Listing, moved: Bools, places: Integers, finished: _Samples) -> DataError:
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


def _read_source(listing: Listing) -> tuple[_Samples, npt.NDArray[np.uint64]]:
    """Return keys, identities, splits and sizes of the samples of a source: 33 bytes a sample."""
    keys, sources, splits, sizes = (
        np.empty(listing.num_files, kind) for kind in (f"S{KEY_BYTES}", "<u8", np.uint8, np.uint64)
    )
    for place, reference in enumerate(listing.references()):
        keys[place] = make_key(reference.path)
        sources[place] = int.from_bytes(reference.identity(listing.classes), "little")
        splits[place] = reference.split
        sizes[place] = reference.size
    return _Samples(keys, sources, splits), sizes


def _read_finished(parent: Parent) -> _Samples:
    keys, sources, splits = [], [], []
    for part in parent.manifest.index_parts:
        uri = part.uri(parent.uri)
        layout = read_layout(uri)
        rows = read_part_rows(uri, layout, 0, part.samples)
        # Bytes of one length compare as S16 as they are; a void type cannot be sorted.
        keys.append(np.ascontiguousarray(rows["key"]).view(f"S{KEY_BYTES}"))
        sources.append(read_part_column(uri, layout, "source", part.samples))
        splits.append(np.full(part.samples, _split_of(parent.manifest, part.first), np.uint8))
    return _Samples(
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
