"""Increments: write only new and changed samples, and reuse the shards of an earlier manifest, the parent.

A sample is unchanged if its path is in the parent with the same `Reference.source`. New and changed samples are written
into new shards. Deleted and changed samples stay in their shard file; a new index of that shard omits them. Shards are
never merged; a full reshard does that.

Source and parent are compared in 256 pieces, by the first byte of the sample keys, which bounds the memory. No step is
a Python loop over samples.
"""

from __future__ import annotations

import functools
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, DuplicateGroup, FileEntry, ShardManifest
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS
from contracts.errors import DataError, TryAgain
from contracts.stage import find_output_damage
from records.index import NO_LABEL, Index, pack_index, read_index, unpack_index
from records.statistics import Tally
from sharding.job import DELETED_ROWS_NAME, Increment, Job, ShardResult, merge_results
from sharding.names import decode_name, encode_path, join_names
from sharding.reference import PART_CELL_BYTES, PART_ROWS, Listing, write_part

# Inputs that may differ between two manifests of a chain.
_CHANGES_PER_LISTING = {"listing", "parent"}
_FOLDER = re.compile(r"[0-9a-f]{16}")
_PIECES = 256
# Parent indices per batch, and concurrent requests to a bucket.
_READ_INDICES = 64
_THREADS = 16
# A sample of the source, or of the parent, in one of the pieces.
_SAMPLE = np.dtype([("key", "S16"), ("source", "<u8"), ("size", "<i8"), ("at", "<u8")])
_STORED = np.dtype(
    [("key", "S16"), ("source", "<u8"), ("content", "<u8"), ("split", "u1"), ("shard", "<u4"), ("row", "<u4")]
)
# The outcome of the comparison for each sample of the source.
_OUTCOME = np.dtype([("is_known", "?"), ("stays", "?"), ("split", "u1"), ("content", "<u8")])
# Rows of parent shards: shard << 32 | row.
RowIds = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class IncrementPlan:
    """The samples that an increment writes, keeps and deletes."""

    listing: Listing
    """The samples to write, labelled in the parent's order of classes."""
    increment: Increment
    deleted_rows: RowIds
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
            f"writes {num_written} shards"
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
    if not comparison.num_matched:
        return None
    parent_classes = [decode_name(name) for name in parent.classes]
    places = {name: place for place, name in enumerate(parent_classes)}
    for name in listing.classes:
        places.setdefault(name, len(places))
    labels = np.array([places[name] for name in listing.classes], np.int32)
    new_sums, kept_sums, new_parts, kept_parts = _divide(listing, comparison, labels, len(places), scratch)
    in_source = {name for at, name in enumerate(listing.classes) if any(counts[at] for counts in listing.counts)}
    increment = Increment(
        parent=parent.fingerprint,
        parent_sha256=parent.sha256,
        kept=kept_sums.to_result(),
        num_kept=sum(kept_sums.samples),
        copies=_list_kept_copies(parent, listing, comparison),
        vanished=[label for label, name in enumerate(parent_classes) if name not in in_source],
        num_kept_parts=len(kept_parts),
        num_changed_shards=len(np.unique(comparison.deleted_rows >> np.uint64(32))),
        num_new=listing.num_files - comparison.num_matched,
        num_changed=comparison.num_matched - comparison.num_unchanged,
        num_gone=comparison.num_gone,
    )
    written = replace(
        listing,
        classes=tuple(places),
        counts=tuple(counts.tolist() for counts in new_sums.by_class),
        split_bytes=new_sums.source_bytes,
        split_files=new_sums.samples,
        vocabularies=_extend(parent, listing.vocabularies),
        written=new_parts,
        packed=[],
        last=[],
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
    deleted_rows: RowIds
    num_matched: int
    num_unchanged: int
    num_gone: int


def _compare(listing: Listing, parent: ShardManifest, parent_uri: str, scratch: Path) -> _Comparison:
    source_pieces, parent_pieces = _Pieces(scratch / "now"), _Pieces(scratch / "stored")
    at = 0
    for table in listing.tables():
        samples = np.empty(table.num_rows, _SAMPLE)
        samples["key"] = _keys_of(table)
        samples["source"], samples["size"] = table["source"].to_numpy(), table["size"].to_numpy()
        samples["at"] = np.arange(at, at + len(samples))
        source_pieces.add(samples)
        at += len(samples)
    for batch in _read_indices(parent, parent_uri):
        parent_pieces.add(np.concatenate([_to_stored(*rows) for rows in batch]))
    outcomes = np.memmap(scratch / "outcomes", _OUTCOME, "w+", shape=max(1, at))
    sizes, deleted_rows = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    num_matched = num_unchanged = num_gone = 0
    for piece in range(_PIECES):
        in_source, in_parent = source_pieces.read(piece, _SAMPLE), parent_pieces.read(piece, _STORED)
        in_parent = in_parent[np.argsort(in_parent["key"], kind="stable")]
        is_matched = np.zeros(len(in_source), bool)
        is_unchanged = np.zeros(len(in_source), bool)
        if len(in_parent):
            places = np.minimum(np.searchsorted(in_parent["key"], in_source["key"]), len(in_parent) - 1)
            is_matched = in_parent["key"][places] == in_source["key"]
            is_unchanged = is_matched & (in_parent["source"][places] == in_source["source"])
            outcomes["split"][in_source["at"]] = in_parent["split"][places]
            outcomes["content"][in_source["at"]] = in_parent["content"][places]
            is_deleted = np.ones(len(in_parent), bool)
            is_deleted[places[is_unchanged]] = False
            deleted = in_parent[is_deleted]
            deleted_rows.append(deleted["shard"].astype(np.uint64) << np.uint64(32) | deleted["row"])
            has_match = np.zeros(len(in_parent), bool)
            has_match[places[is_matched]] = True
            num_gone += int((~has_match).sum())
        outcomes["is_known"][in_source["at"]], outcomes["stays"][in_source["at"]] = is_matched, is_unchanged
        sizes.append(np.unique(in_source["size"][~is_unchanged]))
        num_matched, num_unchanged = num_matched + int(is_matched.sum()), num_unchanged + int(is_unchanged.sum())
    return _Comparison(
        outcomes,
        np.unique(np.concatenate(sizes)),
        np.sort(np.concatenate(deleted_rows)),
        num_matched,
        num_unchanged,
        num_gone,
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


def _keys_of(table: pa.Table) -> npt.NDArray[np.bytes_]:
    chunk = table["key"].combine_chunks()
    return np.frombuffer(chunk.buffers()[1], "S16", len(chunk), 16 * chunk.offset)


def _read_indices(parent: ShardManifest, parent_uri: str) -> Iterator[list[tuple[int, str, Index]]]:
    """Yield number, split and rows of the parent's shards in batches of `_READ_INDICES`."""
    numbered = enumerate(parent.shards)
    while batch := list(islice(numbered, _READ_INDICES)):
        contents = storage.read_many([storage.ReadRequest(entry.index.uri(parent_uri)) for _, entry in batch])
        yield [
            # read_index raises the error with the name of the missing file.
            (
                number,
                entry.split,
                read_index(parent_uri, entry) if isinstance(content, OSError) else unpack_index(content, entry),
            )
            for (number, entry), content in zip(batch, contents, strict=True)
        ]


def _to_stored(shard: int, split: str, rows: Index) -> npt.NDArray[np.void]:
    samples = np.empty(len(rows), _STORED)
    samples["key"] = np.ascontiguousarray(rows["key"]).view("S16")
    samples["source"], samples["content"] = rows["source"], rows["content"]
    samples["split"], samples["shard"], samples["row"] = SPLITS.index(split), shard, np.arange(len(rows))
    return samples


# --- new and unchanged samples ----------------------------------------------------------------------------------------


class _Sums:
    """Numbers of samples, by split."""

    def __init__(self, num_classes: int) -> None:
        self.samples = [0] * len(SPLITS)
        self.source_bytes = [0] * len(SPLITS)
        self.by_class = np.zeros((len(SPLITS), num_classes), np.int64)

    def add(self, table: pa.Table) -> None:
        """Add the samples of a table."""
        splits = table["split"].to_numpy()
        sizes = table["size"].to_numpy() + table["more_bytes"].to_numpy()
        labels = table["labels"].combine_chunks()
        counts = labels.value_lengths().to_numpy(zero_copy_only=False)
        np.add.at(self.by_class, (np.repeat(splits, counts), labels.flatten().to_numpy()), 1)
        for split in range(len(SPLITS)):
            self.samples[split] += int((splits == split).sum())
            self.source_bytes[split] += int(sizes[splits == split].sum())

    def to_result(self) -> ShardResult:
        """Return the sums without shards."""
        by_class = {
            name: {label: count for label, count in enumerate(counts.tolist()) if count}
            for name, counts in zip(SPLITS, self.by_class, strict=True)
        }
        sizes = dict(zip(SPLITS, self.source_bytes, strict=True))
        return ShardResult(shards=[], samples_by_class=by_class, source_bytes=sizes)


def _divide(
    listing: Listing, comparison: _Comparison, labels: npt.NDArray[np.int32], num_classes: int, scratch: Path
) -> tuple[_Sums, _Sums, list[Path], list[Path]]:
    """Write parts of new samples and of unchanged ones that they may duplicate; return the sums and parts of both.

    Args:
        listing: The samples of the source.
        comparison: Comparison of the source with the parent.
        labels: New label of each class of the listing.
        num_classes: Number of all classes.
        scratch: Folder for the parts.

    Raises:
        DataError: The source gives an old sample another split.
    """
    new_sums, kept_sums = _Sums(num_classes), _Sums(num_classes)
    new_parts, kept_parts = _PartWriter(scratch, "new"), _PartWriter(scratch, "kept")
    at = 0
    for table in listing.tables():
        outcome = comparison.outcomes[at : at + table.num_rows]
        at += table.num_rows
        source_splits = table["split"].to_numpy()
        # Unless the source gives splits, a known sample keeps its split.
        splits = np.where(outcome["is_known"], outcome["split"], source_splits)
        if listing.splits_given and (splits != source_splits).any():
            raise _moved(listing, table["path"], splits, source_splits)
        table = _relabel(table.set_column(2, "split", pa.array(splits, pa.uint8())), labels)
        stays = np.array(outcome["stays"])
        new_sums.add(table.filter(~stays))
        new_parts.add(table.filter(~stays))
        kept_sums.add(table.filter(stays))
        is_compared = stays & np.isin(table["size"].to_numpy(), comparison.new_sizes)
        labels_of = table["labels"].filter(is_compared).to_pylist()
        first_labels = [ids[0] if len(ids) == 1 and not listing.multi_label else NO_LABEL for ids in labels_of]
        kept_parts.add(
            table.filter(is_compared)
            .select(["path", "split"])
            .append_column("label", pa.array(first_labels, pa.int32()))
            .append_column("content", pa.array(outcome["content"][is_compared], pa.uint64()))
        )
    return new_sums, kept_sums, new_parts.close(), kept_parts.close()


def _list_kept_copies(parent: ShardManifest, listing: Listing, comparison: _Comparison) -> list[DuplicateGroup]:
    """Return the parent's groups of duplicates, restricted to unchanged samples, that still have two or more."""
    groups = parent.duplicates.listed if parent.duplicates is not None else []
    if not groups:
        return []
    paths = pa.array({decode_name(copy.path) for group in groups for copy in group.copies}, pa.binary())
    staying: set[str] = set()
    at = 0
    for table in listing.tables():
        stays = np.array(comparison.outcomes["stays"][at : at + table.num_rows])
        at += table.num_rows
        kept = table["path"].filter(stays)
        staying.update(encode_path(path) for path in kept.filter(pa.compute.is_in(kept, value_set=paths)).to_pylist())
    kept_groups = []
    for group in groups:
        copies = [copy for copy in group.copies if copy.path in staying]
        if len(copies) > 1:
            kept_groups.append(DuplicateGroup(content=group.content, copies=copies))
    return kept_groups


def _moved(listing: Listing, paths: Any, old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8]) -> DataError:
    places = np.flatnonzero(old != new).tolist()
    names = [f"{encode_path(paths[at].as_py())} ({SPLITS[old[at]]} -> {SPLITS[new[at]]})" for at in places]
    return DataError(
        f"{storage.display(listing.uri)}: {len(places)} samples moved to another split: {join_names(names)}",
        allowed="old samples keep their split: what was trained on must not be tested on",
        todo="give them their old split back, or set sharding.incremental=false for a full reshard",
    )


def _relabel(table: pa.Table, labels: npt.NDArray[np.int32]) -> pa.Table:
    """Return a table with new labels, ascending for each sample."""
    if (labels == np.arange(len(labels))).all():
        return table
    old_labels = table["labels"].combine_chunks()
    counts = old_labels.value_lengths().to_numpy(zero_copy_only=False)
    values = labels[old_labels.flatten().to_numpy()]
    values = values[np.lexsort((values, np.repeat(np.arange(len(old_labels)), counts)))]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return table.set_column(3, "labels", pa.ListArray.from_arrays(offsets, pa.array(values, pa.int32())))


class _PartWriter:
    """Writes tables as parts of `PART_ROWS` rows, or the rest."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._waiting: list[pa.Table] = []
        self._paths: list[Path] = []

    def add(self, table: pa.Table) -> None:
        """Append a table."""
        if not table.num_rows:
            return
        self._waiting.append(table)
        num_rows = sum(part.num_rows for part in self._waiting)
        if num_rows >= PART_ROWS or sum(part.nbytes for part in self._waiting) >= PART_CELL_BYTES:
            self._write()

    def close(self) -> list[Path]:
        """Write the rest; return the paths of all parts."""
        self._write()
        return self._paths

    def _write(self) -> None:
        if self._waiting:
            self._paths.append(self._folder / f"{self._name}-{len(self._paths):05d}.parquet")
            write_part(self._paths[-1], pa.concat_tables(self._waiting))
            self._waiting = []


# --- in the job -------------------------------------------------------------------------------------------------------


def read_parent(job: Job) -> ShardManifest:
    """Return the parent's manifest.

    Raises:
        TryAgain: The parent was rewritten since the increment was planned.
    """
    manifest = _load_manifest(job.parent_uri)
    assert job.planned.increment is not None
    if manifest.sha256 != job.planned.increment.parent_sha256:
        raise TryAgain(f"{storage.display(job.parent_uri)} was rewritten meanwhile; run again with --fresh")
    return manifest


@functools.lru_cache(maxsize=1)
def _load_manifest(uri: str) -> ShardManifest:
    return ShardManifest.load(uri)


@functools.lru_cache(maxsize=1)
def _load_deleted_rows(uri: str) -> dict[int, npt.NDArray[np.intp]]:
    deleted: RowIds = np.load(io.BytesIO(storage.read_bytes(uri)), allow_pickle=False)
    shards, starts = np.unique(deleted >> np.uint64(32), return_index=True)
    rows = np.split((deleted & np.uint64(0xFFFFFFFF)).astype(np.intp), starts[1:])
    return dict(zip(shards.tolist(), rows, strict=False))


def drop_rows(job: Job, start: int, count: int) -> ShardResult:
    """Publish new indices for parent shards without their deleted samples; return these shards.

    Args:
        job: The planned increment.
        start: Position of the first shard among the shards with deleted samples.
        count: Number of shards.

    Raises:
        DataError: An index of the parent is damaged.
    """
    parent, deleted = read_parent(job), _load_deleted_rows(storage.join(job.listing_uri, DELETED_ROWS_NAME))
    changed = []
    for number, deleted_rows in islice(deleted.items(), start, start + count):
        entry = parent.shards[number]
        rows = np.delete(read_index(job.parent_uri, entry), deleted_rows)
        if not len(rows):
            continue
        content = pack_index(rows)
        index = FileEntry(name=index_name(entry.name), bytes=len(content), crc32c=storage.crc32c(content))
        storage.publish(index.uri(job.output_uri), content)
        changes = {
            "folder": entry.folder or parent.fingerprint,
            "samples": len(rows),
            "tombstones": entry.tombstones + entry.samples - len(rows),
            "index": index,
        }
        changed.append(entry.model_copy(update=changes))
    return ShardResult(shards=changed)


def add_parent(job: Job, parent: ShardManifest, result: ShardResult) -> ShardResult:
    """Add the reused shards and unchanged samples of the parent to the result of an increment."""
    assert job.planned.increment is not None
    changed = _load_deleted_rows(storage.join(job.listing_uri, DELETED_ROWS_NAME))
    kept = []
    for number, entry in enumerate(parent.shards):
        if number not in changed:
            folder = {"folder": entry.folder or parent.fingerprint}
            index = entry.index.model_copy(update={"folder": entry.index.folder or parent.fingerprint})
            kept.append(entry.model_copy(update={**folder, "index": index}))
    from_parent = ShardResult(shards=kept, tally=read_tally(parent))
    return merge_results([job.planned.increment.kept, from_parent, result])


def read_tally(manifest: ShardManifest) -> Tally:
    """Return the counts of image properties in a manifest."""
    images = manifest.images
    if images is None:
        return Tally()
    width, height = ((bounds[0], bounds[1]) if bounds else None for bounds in (images.width, images.height))
    changed = manifest.prepared.changed if manifest.prepared is not None else {}
    return Tally(Counter(images.formats), Counter(images.modes), Counter(changed), width, height)
