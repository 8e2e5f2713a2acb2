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
from contracts.config import SPLITS
from records.index_parts import checksum_rows, read_layout, read_part_column, read_part_rows, write_part
from sharding.job import GONE_NAME, OpenJob, scratch_file

# A shard that stays: its number in the parent, live samples, crc32c of their rows.
KeptShard = tuple[int, int, str]


def count_parts(opened: OpenJob) -> int:
    """Return the number of parts of the index that are taken over."""
    return len(_parent(_parent_uri(opened)).index_parts) if opened.planned.append is not None else 0


def keep_part(number: int, opened: OpenJob) -> None:
    """Leave a summary of one part of the parent's index, and write the part anew where something is gone from it."""
    uri = _kept_uri(number, opened)
    if storage.exists(uri):
        return
    parent = _parent(_parent_uri(opened))
    part = parent.index_parts[number]
    gone = _gone(storage.join(opened.planned.listing_uri(opened.job.output_uri), GONE_NAME))
    first, last = np.searchsorted(gone, [part.first, part.first + part.samples])
    dead = (gone[first:last] - np.uint64(part.first)).astype(np.int64)
    firsts = np.array([entry.first for entry in parent.shards], np.int64)
    own = range(*np.searchsorted(firsts, [part.first, part.first + part.samples]).tolist())
    if not len(dead):
        shards = [(at, parent.shards[at].samples, parent.shards[at].rows_crc32c) for at in own]
        storage.publish(uri, marshal.dumps((None, shards), 2))
        return
    alive = np.ones(part.samples, bool)
    alive[dead] = False
    part_uri = part.uri(_parent_uri(opened))
    layout = read_layout(part_uri)
    rows = read_part_rows(part_uri, layout, 0, part.samples)
    columns = {name: read_part_column(part_uri, layout, name, 0, part.samples) for name, _ in layout.columns}
    shards = []
    for at in own:
        entry = parent.shards[at]
        here = slice(entry.first - part.first, entry.first - part.first + entry.samples)
        live = alive[here]
        if live.any():
            kept = {name: values[here][live] for name, values in columns.items()}
            shards.append((at, int(live.sum()), checksum_rows(rows[here][live], kept)))
    written = None
    if shards:
        name = f"index-{opened.job.key}-kept-{number:05d}.bin"
        scratch = scratch_file(opened.job.output_uri)
        try:
            write_part(scratch, rows[alive], {name: values[alive] for name, values in columns.items()})
            crc32c = storage.crc32c_of(storage.normalise(scratch))
            written = (name, scratch.stat().st_size, crc32c)
            storage.publish_file(scratch, storage.join(opened.job.output_uri, name))
        finally:
            scratch.unlink(missing_ok=True)
    storage.publish(uri, marshal.dumps((written, shards), 2))


class Kept:
    """What an increment takes over of its parent, as the manifest lists it."""

    def __init__(self, opened: OpenJob) -> None:
        assert opened.planned.append is not None
        self.append = opened.planned.append
        self.manifest = _parent(_parent_uri(opened))
        self._opened = opened

    def of_split(self, split: int, first: int) -> tuple[list[ShardEntry], list[IndexPart]]:
        """Return the shards and parts of a split, in the parent's order.

        Args:
            split: A place in SPLITS.
            first: Place in the new index of the first of their samples.
        """
        shards: list[ShardEntry] = []
        parts: list[IndexPart] = []
        for number, part in enumerate(self.manifest.index_parts):
            written, kept = marshal.loads(storage.read_bytes(_kept_uri(number, self._opened)))
            if not kept or self.manifest.shards[kept[0][0]].split != SPLITS[split]:
                continue
            start = first
            for at, samples, rows_crc32c in kept:
                entry = self.manifest.shards[at]
                shards.append(
                    entry.model_copy(
                        update={
                            "folder": entry.folder or self.append.parent,
                            "first": first,
                            "samples": samples,
                            "tombstones": entry.tombstones + entry.samples - samples,
                            "rows_crc32c": rows_crc32c,
                        }
                    )
                )
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
def _parent(uri: str) -> ShardManifest:
    return ShardManifest.load(uri)


@functools.lru_cache(maxsize=1)
def _gone(uri: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(storage.read_bytes(uri), "<u8")


def _kept_uri(number: int, opened: OpenJob) -> str:
    return storage.join(opened.job.work_uri, opened.job.key, f"kept-{number:05d}")
