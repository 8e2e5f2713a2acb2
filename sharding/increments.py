"""Increments: write only new and changed samples, and reuse the shards of an earlier manifest, the parent.

A sample is unchanged if its path is in the parent with the same `Reference.source`. New and changed samples are written
into new shards. Deleted and changed samples stay in their shard file; a new index of that shard omits them. Shards are
never merged; a full reshard does that.

Source and parent are compared as arrays in 256 pieces, by the first byte of the sample keys, which bounds the memory;
only samples that are written become Python objects.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, DuplicateGroup, FileEntry, ShardEntry, ShardManifest
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS
from contracts.errors import DataError, TryAgain
from contracts.stage import find_output_damage
from records.index import NO_LABEL, pack_index, read_index, unpack_index
from records.statistics import Tally
from sharding.job import DELETED_ROWS_NAME, Increment, Job, ShardResult, merge_results
from sharding.names import count_of, decode_name, encode_path, join_names
from sharding.reference import Listing, to_references, write_part

# Inputs that may differ between two manifests of a chain.
_CHANGES_PER_LISTING = {"listing", "parent"}
_FOLDER = re.compile(r"[0-9a-f]{16}")
_PIECES = 256
# Parent indices per batch, and concurrent requests to a bucket.
_READ_INDICES = 64
_THREADS = 16
# A sample of the source, or of the parent, in one of the pieces; a place in the parent is shard << 32 | row.
_SAMPLE = np.dtype([("key", "S16"), ("source", "<u8"), ("size", "<i8"), ("at", "<u8")])
_STORED = np.dtype([("key", "S16"), ("source", "<u8"), ("content", "<u8"), ("split", "u1"), ("place", "<u8")])
# The outcome of the comparison for each sample of the source.
_OUTCOME = np.dtype([("is_known", "?"), ("stays", "?"), ("split", "u1"), ("content", "<u8")])
# Places of samples in the parent.
Places = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class IncrementPlan:
    """The samples that an increment writes, keeps and deletes."""

    listing: Listing
    """The samples to write, labelled in the parent's order of classes."""
    increment: Increment
    deleted_rows: Places
    """Rows of the parent, ascending."""
    kept_parts: Sequence[Path]
    """Parts of unchanged samples that have the size of a written one: path, split, label and content hash."""

    @property
    def is_empty(self) -> bool:
        """Whether the source has exactly the samples of the parent."""
        return not (self.increment.num_new or self.increment.num_changed or self.increment.num_gone)

    def describe(self, num_written: int) -> str:
        """Return the numbers of new, changed and deleted samples and of written shards in one line."""
        plan = self.increment
        return (
            f"increment on {plan.parent}: {plan.num_new} new, {plan.num_changed} changed, {plan.num_gone} gone; "
            f"writes {count_of(num_written, 'shard')}"
        )


def find_parents(
    root: str, made_from: dict[str, str], *, fresh: bool, multi_label: bool, warn: Callable[[str], None]
) -> Iterator[ShardManifest]:
    """Yield manifests with the same settings below a root, newest first, and load each lazily.

    Args:
        root: Folder of the stage's outputs.
        made_from: Hashes that decide a full reshard.
        fresh: Skip manifests of exactly this listing, which is to be sharded again.
        multi_label: Whether the labels of the source are lists.
        warn: Called with a message for each unusable manifest.
    """
    expected = {name: value for name, value in made_from.items() if name not in _CHANGES_PER_LISTING}
    uris = [
        storage.join(root, name.rstrip("/")) for name in storage.list_names(root) if _FOLDER.fullmatch(name.rstrip("/"))
    ]
    with ThreadPoolExecutor(_THREADS) as pool:
        times = list(pool.map(_finished_at, uris))
    for _, uri in sorted((-time_s, uri) for time_s, uri in zip(times, uris, strict=True) if time_s):
        try:
            manifest = ShardManifest.load(uri)
        except DataError as error:
            warn(f"warning: nothing is built on {storage.display(uri)}: {error}")
            continue
        actual = {name: value for name, value in manifest.made_from.items() if name not in _CHANGES_PER_LISTING}
        is_same_listing = manifest.made_from.get("listing") == made_from["listing"]
        if actual != expected or (fresh and is_same_listing):
            continue
        problem = find_output_damage(uri, manifest)
        if problem is None and not is_same_listing and manifest.multi_label != multi_label:
            problem = "the source now gives its labels in another form (lists, or single ones)"
        if problem is None:
            yield manifest
        else:
            warn(f"warning: nothing is built on {storage.display(uri)}: {problem}")


def _finished_at(uri: str) -> float:
    """Return when a manifest was published, in seconds since 1970; 0 where there is none."""
    try:
        return storage.info(storage.join(uri, MANIFEST_NAME)).updated_s
    except (FileNotFoundError, NotADirectoryError):
        return 0


def plan_increment(listing: Listing, parent: ShardManifest, parent_uri: str, scratch: Path) -> IncrementPlan | None:
    """Compare a source with a parent; None if they have no sample in common.

    Args:
        listing: The samples of the source.
        parent: An earlier manifest of the same configuration.
        parent_uri: Its folder.
        scratch: Folder for parts and for the pieces of the comparison.

    Raises:
        DataError: The source gives an old sample another split, or an index of the parent is damaged.
    """
    comparison = _compare(listing, parent, parent_uri, scratch)
    if not comparison.num_known:
        return None
    parent_classes = [decode_name(name) for name in parent.classes]
    written = replace(
        listing,
        classes=tuple(dict.fromkeys((*parent_classes, *listing.classes))),
        folder=scratch / "new",
        vocabularies=_extend(parent, listing.vocabularies),
        counts=(),
        split_bytes=[0] * len(SPLITS),
        split_files=[0] * len(SPLITS),
        written=[],
        packed=[],
        last=[],
        cell_bytes=0,
    )
    kept, kept_parts, kept_copies = _divide(listing, written, comparison, parent, scratch)
    in_source = {name for label, name in enumerate(listing.classes) if any(counts[label] for counts in listing.counts)}
    increment = Increment(
        parent=parent.fingerprint,
        parent_sha256=parent.sha256,
        kept=kept,
        num_kept=comparison.num_kept,
        copies=kept_copies,
        vanished=[label for label, name in enumerate(parent_classes) if name not in in_source],
        num_kept_parts=len(kept_parts),
        num_new=listing.num_files - comparison.num_known,
        num_changed=comparison.num_known - comparison.num_kept,
        num_gone=sum(parent.shards.samples) - comparison.num_known,
    )
    return IncrementPlan(written, increment, comparison.deleted_rows, kept_parts)


def _extend(manifest: ShardManifest, vocabularies: dict[str, tuple[bytes, ...]]) -> dict[str, tuple[bytes, ...]]:
    """Append new classes of further fields to those of the parent, whose shards store their indices."""
    parent_classes = {name: list(map(decode_name, manifest.fields[name].classes)) for name in vocabularies}
    return {name: tuple(dict.fromkeys((*parent_classes[name], *names))) for name, names in vocabularies.items()}


# --- comparison by keys -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison:
    outcomes: Any
    """[N] of dtype `_OUTCOME`, for each sample of the source in the order of the listing; a file that is mapped."""
    new_sizes: npt.NDArray[np.int64]
    """Sizes of the files that are written, each once."""
    deleted_rows: Places
    num_known: int
    """Samples of the source that the parent has, in this state or in another."""
    num_kept: int


def _compare(listing: Listing, parent: ShardManifest, parent_uri: str, scratch: Path) -> _Comparison:
    source_pieces, parent_pieces = _Pieces(scratch / "now"), _Pieces(scratch / "stored")
    at = 0
    for table in listing.tables():
        samples = np.empty(table.num_rows, _SAMPLE)
        chunk = table["key"].combine_chunks()
        samples["key"] = np.frombuffer(chunk.buffers()[1], "S16", len(chunk), 16 * chunk.offset)
        samples["source"], samples["size"] = table["source"].to_numpy(), table["size"].to_numpy()
        samples["at"] = np.arange(at, at + len(samples))
        source_pieces.add(samples)
        at += len(samples)
    for batch in _read_indices(parent, parent_uri):
        parent_pieces.add(batch)
    outcomes = np.memmap(scratch / "outcomes", _OUTCOME, "w+", shape=max(1, at))
    sizes, deleted_rows = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for piece in range(_PIECES):
        in_source, in_parent = source_pieces.read(piece, _SAMPLE), parent_pieces.read(piece, _STORED)
        in_parent = in_parent[np.argsort(in_parent["key"], kind="stable")]
        outcome = np.zeros(len(in_source), _OUTCOME)
        is_deleted = np.ones(len(in_parent), bool)
        if len(in_parent):
            places = np.minimum(np.searchsorted(in_parent["key"], in_source["key"]), len(in_parent) - 1)
            outcome["is_known"] = in_parent["key"][places] == in_source["key"]
            outcome["stays"] = outcome["is_known"] & (in_parent["source"][places] == in_source["source"])
            outcome["split"], outcome["content"] = in_parent["split"][places], in_parent["content"][places]
            is_deleted[places[outcome["stays"]]] = False
        outcomes[in_source["at"]] = outcome
        deleted_rows.append(in_parent["place"][is_deleted])
        sizes.append(np.unique(in_source["size"][~outcome["stays"]]))
    return _Comparison(
        outcomes,
        np.unique(np.concatenate(sizes)),
        np.sort(np.concatenate(deleted_rows)),
        int(outcomes["is_known"].sum()),
        int(outcomes["stays"].sum()),
    )


class _Pieces:
    """Arrays of samples, in 256 files by the first byte of the key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._paths = [folder / f"{piece:02x}" for piece in range(_PIECES)]

    def add(self, samples: npt.NDArray[np.void]) -> None:
        """Append samples, each to its file."""
        pieces = np.ascontiguousarray(samples["key"]).view(np.uint8).reshape(-1, 16)[:, 0]
        order = np.argsort(pieces, kind="stable")
        ends = np.searchsorted(pieces[order], np.arange(1, _PIECES + 1))
        for path, rows in zip(self._paths, np.split(samples[order], ends[:-1]), strict=True):
            if len(rows):
                with path.open("ab") as file:
                    file.write(rows.tobytes())

    def read(self, piece: int, dtype: np.dtype[Any]) -> npt.NDArray[np.void]:
        """Return the samples of a file."""
        path = self._paths[piece]
        return np.fromfile(path, dtype) if path.exists() else np.empty(0, dtype)


def _read_indices(parent: ShardManifest, parent_uri: str) -> Iterator[npt.NDArray[np.void]]:
    """Yield the samples of the parent, of dtype `_STORED`, in batches of `_READ_INDICES` shards."""
    numbered = enumerate(parent.shards)
    while batch := list(islice(numbered, _READ_INDICES)):
        contents = storage.read_many([storage.ReadRequest(entry.index.uri(parent_uri)) for _, entry in batch])
        found = []
        for (number, entry), content in zip(batch, contents, strict=True):
            # read_index raises the error with the name of the missing file.
            rows = unpack_index(content, entry) if isinstance(content, bytes) else read_index(parent_uri, entry)
            samples = np.empty(len(rows), _STORED)
            samples["key"] = np.ascontiguousarray(rows["key"]).view("S16")
            samples["source"], samples["content"] = rows["source"], rows["content"]
            samples["split"], samples["place"] = SPLITS.index(entry.split), np.arange(len(rows)) + (number << 32)
            found.append(samples)
        yield np.concatenate(found)


# --- new and unchanged samples ----------------------------------------------------------------------------------------


def _divide(
    listing: Listing, written: Listing, comparison: _Comparison, parent: ShardManifest, scratch: Path
) -> tuple[ShardResult, list[Path], list[DuplicateGroup]]:
    """Add new and changed samples to a listing; return sums, parts and known duplicates of the unchanged ones.

    Args:
        listing: The samples of the source.
        written: Gets the samples to write.
        comparison: Comparison of the source with the parent.
        parent: Its manifest.
        scratch: Folder for the parts, which hold unchanged samples that new ones may duplicate.

    Raises:
        DataError: The source gives an old sample another split.
    """
    labels = np.array([written.classes.index(name) for name in listing.classes], np.int32)
    by_class, source_bytes = np.zeros((len(SPLITS), len(written.classes)), np.int64), np.zeros(len(SPLITS), np.int64)
    groups = parent.duplicates.listed if parent.duplicates is not None else []
    copied = pa.array({unquote_to_bytes(copy.path) for group in groups for copy in group.copies}, pa.binary())
    kept_copies: set[str] = set()
    parts: list[Path] = []
    at = 0
    for table in listing.tables():
        outcome = comparison.outcomes[at : at + table.num_rows]
        at += table.num_rows
        source_splits, stays = table["split"].to_numpy(), np.array(outcome["stays"])
        # Unless the source gives splits, a known sample keeps its split.
        splits = np.where(outcome["is_known"], outcome["split"], source_splits)
        if listing.splits_given and (splits != source_splits).any():
            raise _moved(listing, table["path"], splits, source_splits)
        for reference, split in zip(to_references(table.filter(~stays)), splits[~stays].tolist(), strict=True):
            new_labels = tuple(sorted(labels[list(reference.labels)].tolist()))
            written.add(reference._replace(split=split, labels=new_labels))
        kept, kept_splits = table.filter(stays), splits[stays]
        np.add.at(source_bytes, kept_splits, kept["size"].to_numpy() + kept["more_bytes"].to_numpy())
        kept_labels = kept["labels"].combine_chunks()
        counts = kept_labels.value_lengths().to_numpy(zero_copy_only=False)
        np.add.at(by_class, (np.repeat(kept_splits, counts), labels[kept_labels.flatten().to_numpy()]), 1)
        is_copied = pa.compute.is_in(kept["path"], value_set=copied)
        kept_copies.update(map(encode_path, kept["path"].filter(is_copied).to_pylist()))
        is_compared = np.isin(kept["size"].to_numpy(), comparison.new_sizes)
        if is_compared.any():
            ids = kept_labels.filter(is_compared).to_pylist()
            part = {
                "path": kept["path"].filter(is_compared),
                "split": kept_splits[is_compared],
                "label": [NO_LABEL if len(i) != 1 or listing.multi_label else int(labels[i[0]]) for i in ids],
                "content": outcome["content"][stays][is_compared],
            }
            parts.append(scratch / f"kept-{len(parts):05d}.parquet")
            write_part(parts[-1], pa.table(part))
    kept_groups = []
    for group in groups:
        copies = [copy for copy in group.copies if copy.path in kept_copies]
        if len(copies) > 1:
            kept_groups.append(DuplicateGroup(content=group.content, copies=copies))
    result = ShardResult(
        shards=[],
        samples_by_class={
            name: {label: count for label, count in enumerate(counts) if count}
            for name, counts in zip(SPLITS, by_class.tolist(), strict=True)
        },
        source_bytes=dict(zip(SPLITS, source_bytes.tolist(), strict=True)),
    )
    return result, parts, kept_groups


def _moved(listing: Listing, paths: Any, old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8]) -> DataError:
    places = np.flatnonzero(old != new).tolist()
    names = [f"{encode_path(paths[at].as_py())} ({SPLITS[old[at]]} -> {SPLITS[new[at]]})" for at in places]
    return DataError(
        f"{storage.display(listing.uri)}: {len(places)} samples moved to another split: {join_names(names)}",
        allowed="old samples keep their split: what was trained on must not be tested on",
        todo="give them their old split back, or set sharding.incremental=false for a full reshard",
    )


# --- in the job -------------------------------------------------------------------------------------------------------


def read_parent(job: Job) -> ShardManifest:
    """Return the parent's manifest.

    Raises:
        TryAgain: The parent was rewritten since the increment was planned.
    """
    manifest = ShardManifest.load(job.parent_uri)
    assert job.planned.increment is not None
    if manifest.sha256 != job.planned.increment.parent_sha256:
        raise TryAgain(f"{storage.display(job.parent_uri)} was rewritten meanwhile; run again with --fresh")
    return manifest


def add_parent(job: Job, parent: ShardManifest, result: ShardResult) -> ShardResult:
    """Add the reused shards and unchanged samples of the parent to the result of an increment.

    Publishes new indices of parent shards without their deleted samples.

    Raises:
        DataError: An index of the parent is damaged.
    """
    assert job.planned.increment is not None
    content = storage.read_bytes(storage.join(job.listing_uri, DELETED_ROWS_NAME))
    deleted: Places = np.load(io.BytesIO(content), allow_pickle=False)
    numbers, starts = np.unique(deleted >> np.uint64(32), return_index=True)
    rows = np.split((deleted & np.uint64(0xFFFFFFFF)).astype(np.intp), starts[1:])
    deleted_rows = dict(zip(numbers.tolist(), rows, strict=False))

    def reuse(number: int) -> ShardEntry | None:
        return _reuse_shard(job, parent, parent.shards[number], deleted_rows.get(number))

    with ThreadPoolExecutor(_THREADS) as threads:
        shards = [entry for entry in threads.map(reuse, range(len(parent.shards))) if entry is not None]
    return merge_results([job.planned.increment.kept, ShardResult(shards=shards, tally=_read_tally(parent)), result])


def _reuse_shard(
    job: Job, parent: ShardManifest, entry: ShardEntry, deleted_rows: npt.NDArray[np.intp] | None
) -> ShardEntry | None:
    """Return a parent shard as an increment lists it; None where no sample of it stays."""
    folder = entry.folder or parent.fingerprint
    if deleted_rows is None:
        index = entry.index.model_copy(update={"folder": entry.index.folder or parent.fingerprint})
        return entry.model_copy(update={"folder": folder, "index": index})
    rows = np.delete(read_index(job.parent_uri, entry), deleted_rows)
    if not len(rows):
        return None
    content = pack_index(rows)
    index = FileEntry(name=index_name(entry.name), bytes=len(content), crc32c=storage.crc32c(content))
    storage.publish(index.uri(job.output_uri), content)
    changes = {
        "folder": folder,
        "samples": len(rows),
        "tombstones": entry.tombstones + entry.samples - len(rows),
        "index": index,
    }
    return entry.model_copy(update=changes)


def _read_tally(manifest: ShardManifest) -> Tally:
    """Return the counts of image properties in a manifest."""
    images = manifest.images
    if images is None:
        return Tally()
    width, height = ((bounds[0], bounds[1]) if bounds else None for bounds in (images.width, images.height))
    changed = manifest.prepared.changed if manifest.prepared is not None else {}
    return Tally(Counter(images.formats), Counter(images.modes), Counter(changed), width, height)
