"""The drawn samples of all shards, and of what an increment takes over: a file that the manifest names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from contracts import storage
from contracts.artifacts import Drawn, DrawnColumn
from records.drawn import HASH, IMAGE_COLUMNS, MAX_PLACES, MAX_ROWS, Column, DrawnTable, load_drawn
from sharding.commit.kept import Kept
from sharding.job import OpenJob

_CODED = ("category", "class")


def publish_drawn(opened: OpenJob, packed: Mapping[str, bytes], kept: Kept | None) -> Drawn | None:
    """Publish the drawn samples; None where an increment's parent has none, as a part of them would mislead.

    A sample of the parent that has changed is replaced; one that is gone from the source stays, as its shard does.

    Args:
        opened: The job; all its shards are written.
        packed: Columns of what was written, by name.
        kept: What an increment takes over.
    """
    share = opened.job.summed_share
    kinds = _columns(opened, packed)
    columns = list(kinds.values())
    table = _unpack(packed, kinds)
    if kept is not None and not kept.append.compacts:
        before = kept.manifest.drawn
        parent = load_drawn(kept.manifest, kept.uri)
        if before is None or parent is None:
            return None
        named = {column.name for column in before.columns}
        columns = [*before.columns, *(column for column in columns if column.name not in named)]
        share = min(share, before.share)
        table = _join(parent, table, [column.name for column in columns]).below(share)
        while len(table.hashes) > MAX_ROWS:
            share /= 2
            table = table.below(share)
    content = table.pack()
    name = f"drawn-{opened.job.key}.npy"
    storage.publish(storage.join(opened.job.output_uri, name), content)
    return Drawn(
        name=name,
        bytes=len(content),
        crc32c=storage.crc32c(content),
        share=share,
        samples=len(table.hashes),
        columns=columns,
    )


def _columns(opened: OpenJob, packed: Mapping[str, bytes]) -> dict[str, DrawnColumn]:
    """Return the columns by the name that shards have them by: of images first, then in the order of the fields."""
    found = {name: DrawnColumn(name=name, kind="number") for name in IMAGE_COLUMNS if name in packed}
    fields = opened.job.fields
    for name, kind in fields.kinds.items() if fields is not None else ():
        key = f"fields.{name}"
        if key in packed:
            found[key] = DrawnColumn(name=name, kind="category" if kind in _CODED else "number")
        section = opened.planned.sharding.fields[name]
        names = list(opened.planned.columns.get(name) or section.columns)
        for place in range(MAX_PLACES):
            if (key := f"fields.{name}[{place}]") in packed:
                shown = names[place] if place < len(names) else f"{name}[{place}]"
                found[key] = DrawnColumn(name=shown, kind="number")
    return found


def _unpack(packed: Mapping[str, bytes], kinds: Mapping[str, DrawnColumn]) -> DrawnTable:
    hashes = np.frombuffer(packed.get(HASH, b""), "<f8")
    return DrawnTable(hashes, {column.name: np.frombuffer(packed[key], "<f8") for key, column in kinds.items()})


def _join(parent: DrawnTable, new: DrawnTable, names: Sequence[str]) -> DrawnTable:
    """Return the samples of both; a column that one does not have is missing there."""
    stays = ~np.isin(parent.hashes, new.hashes)

    def column(table: DrawnTable, name: str) -> Column:
        found = table.columns.get(name)
        return np.full(len(table.hashes), np.nan) if found is None else found

    columns = {name: np.concatenate([column(parent, name)[stays], column(new, name)]) for name in names}
    return DrawnTable(np.concatenate([parent.hashes[stays], new.hashes]), columns)
