"""What an increment takes over: the shards of its parent, and its parts of the index without the samples that are gone.

Shards stay in the folder that they are in; so do parts that nothing is gone from. Other parts are written anew: a row
is left out for each tombstone.
"""

from __future__ import annotations

import functools
import marshal

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import IndexPart, ShardEntry, ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.config import SPLITS
from records.index import damaged_index
from records.index_parts import checksum_rows, read_layout, read_part_column, read_part_rows, write_part
from sharding.job import GONE_NAME, OpenJob, scratch_file

# A shard that stays: its number in the parent, live samples, crc32c of their rows.
KeptShard = tuple[int, int, str]
# A part that was written anew: name, bytes, crc32c; None where the parent's stays. And its shards.
KeptPart = tuple[tuple[str, int, str] | None, list[KeptShard]]


def count_parts(opened: OpenJob) -> int:
    """Return the number of parts of the index that an increment takes over."""
    append = opened.planned.append
    return 0 if append is None else len(_open_parent(_parent_uri(opened))[0].index_parts)


def keep_part(number: int, opened: OpenJob) -> None:
    """Leave a summary of one part of the parent's index, and write the part anew where something is gone from it.

    Raises:
        DataError: The part has other rows than the parent's manifest says.
    """
    uri = _kept_uri(number, opened)
    if storage.exists(uri):
        return
    parent, firsts = _open_parent(_parent_uri(opened))
    part = parent.index_parts[number]
    gone = _gone(storage.join(opened.planned.listing_uri(opened.job.output_uri), GONE_NAME))
    dead = gone[slice(*np.searchsorted(gone, np.array([part.first, part.first + part.samples], np.uint64)))]
    shards = range(*np.searchsorted(firsts, [part.first, part.first + part.samples]).tolist())
    if len(dead):
        kept = _write_without((dead - np.uint64(part.first)).astype(np.int64), number, shards, opened)
    else:
        kept = (None, [(at, parent.shards[at].samples, parent.shards[at].rows_crc32c) for at in shards])
    storage.publish(uri, marshal.dumps(kept, 2))


def _write_without(dead: npt.NDArray[np.int64], number: int, shards: range, opened: OpenJob) -> KeptPart:
    """Write a part of the parent's index without some of its rows.

    Args:
        dead: Places in the part of the rows to leave out.
        number: Of the part.
        shards: Numbers of its shards.
        opened: The job.
    """
    parent_uri = _parent_uri(opened)
    parent, _ = _open_parent(parent_uri)
    part = parent.index_parts[number]
    uri = part.uri(parent_uri)
    layout = read_layout(uri)
    rows = read_part_rows(uri, layout, 0, part.samples)
    columns = {name: read_part_column(uri, layout, name, part.samples) for name, _ in layout.columns}
    alive = np.ones(part.samples, bool)
    alive[dead] = False
    kept: list[KeptShard] = []
    for at in shards:
        entry = parent.shards[at]
        here = slice(entry.first - part.first, entry.first - part.first + entry.samples)
        if checksum_rows(rows[here], {name: values[here] for name, values in columns.items()}) != entry.rows_crc32c:
            # A checksum of what is left would hide it.
            raise damaged_index(storage.display(uri), f"has other rows of {entry.name} than its manifest says")
        live = alive[here]
        if live.any():
            left = {name: values[here][live] for name, values in columns.items()}
            kept.append((at, int(live.sum()), checksum_rows(rows[here][live], left)))
    if not kept:
        return None, []
    name = f"index-{opened.job.key}-kept-{number:05d}.bin"
    scratch = scratch_file(opened.job.output_uri)
    try:
        write_part(scratch, rows[alive], {name: values[alive] for name, values in columns.items()})
        written = (name, scratch.stat().st_size, storage.crc32c_of(storage.normalise(scratch)))
        storage.publish_file(scratch, storage.join(opened.job.output_uri, name))
    finally:
        scratch.unlink(missing_ok=True)
    return written, kept


class Kept:
    """What an increment takes over of its parent, as the manifest lists it."""

    def __init__(self, opened: OpenJob) -> None:
        assert opened.planned.append is not None
        self.append = opened.planned.append
        self.uri = _parent_uri(opened)
        self.manifest, _ = _open_parent(self.uri)
        uris = [storage.Wanted(_kept_uri(number, opened)) for number in range(count_parts(opened))]
        self._parts: list[tuple[IndexPart, KeptPart]] = []
        for part, content in zip(self.manifest.index_parts, storage.read_many(uris), strict=False):
            if isinstance(content, FileNotFoundError):
                raise content
            self._parts.append((part, marshal.loads(content)))

    def of_split(self, split: int, first: int) -> tuple[list[ShardEntry], list[IndexPart]]:
        """Return the shards and parts of a split, in the parent's order.

        Args:
            split: A place in SPLITS.
            first: Place in the new index of the first of their samples.
        """
        own = self.manifest.splits[SPLITS[split]]
        shards: list[ShardEntry] = []
        parts: list[IndexPart] = []
        for part, (written, kept) in self._parts:
            if not kept or not own.first <= part.first < own.first + own.samples:
                continue
            start = first
            for at, samples, rows_crc32c in kept:
                entry = self.manifest.shards[at]
                changes = {
                    "folder": entry.folder or self.append.parent,
                    "first": first,
                    "samples": samples,
                    "tombstones": entry.tombstones + entry.samples - samples,
                    "rows_crc32c": rows_crc32c,
                }
                shards.append(entry.model_copy(update=changes))
                first += samples
            if written is None:
                moved = {"folder": part.folder or self.append.parent, "first": start}
                parts.append(part.model_copy(update=moved))
            else:
                name, num_bytes, crc32c = written
                parts.append(IndexPart(name=name, bytes=num_bytes, crc32c=crc32c, first=start, samples=first - start))
        return shards, parts


def _parent_uri(opened: OpenJob) -> str:
    assert opened.planned.append is not None
    # A chain lies in one folder, so that all of it can move.
    return storage.join(opened.job.output_uri.rpartition("/")[0], opened.planned.append.parent)


@functools.lru_cache(maxsize=1)
def _open_parent(uri: str) -> tuple[ShardManifest, npt.NDArray[np.int64]]:
    """Return a manifest, and the place of each shard's first sample."""
    manifest = ShardManifest.load(uri)
    return manifest, shard_columns(manifest.shards).first


@functools.lru_cache(maxsize=1)
def _gone(uri: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(storage.read_bytes(uri), "<u8")


def _kept_uri(number: int, opened: OpenJob) -> str:
    return storage.join(opened.job.work_uri, opened.job.key, f"kept-{number:05d}")
