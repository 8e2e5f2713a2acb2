"""Reading finished shards in tests: every sample by the parts of the index."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from contracts import storage
from contracts.artifacts import ShardManifest
from records.index_parts import checksum_rows, read_layout, read_part_column, read_part_rows
from records.whole_sample import extract_image


@dataclass(frozen=True, order=True)
class Found:
    """A sample as the index tells it."""

    split: str
    label: int
    content: bytes
    """Of the image."""
    key: str
    shard: int


def read_found(folder: Path) -> list[Found]:
    """Return every sample of finished shards, in the order of the index; all checksums are compared."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    firsts = [entry.first for entry in manifest.shards]
    found = []
    for part in manifest.index_parts:
        assert part.first == len(found)
        layout = read_layout(part.uri(uri))
        rows = read_part_rows(part.uri(uri), layout, 0, part.samples)
        labels = read_part_column(part.uri(uri), layout, "label", part.samples)
        sources = read_part_column(part.uri(uri), layout, "source", part.samples)
        for at, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True)):
            shard = bisect_right(firsts, part.first + at) - 1
            entry = manifest.shards[shard]
            sample = storage.read_range(entry.uri(uri), int(row["offset"]), int(row["size"]))
            assert google_crc32c.value(sample) == int(row["crc32c"])
            content = extract_image(sample, manifest.format)
            found.append(Found(entry.split, label, content, row["key"].tobytes().hex(), shard))
            if entry.first == part.first + at:
                own = slice(at, at + entry.samples)
                assert checksum_rows(rows[own], {"label": labels[own], "source": sources[own]}) == entry.rows_crc32c
    return found


def without_key(name: str) -> str:
    """Return the name of a file without the key of its job: sources at other places have other keys."""
    return re.sub(r"-[0-9a-f]{8}(?=[-.])", "", name)
