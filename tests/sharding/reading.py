"""Reading finished shards in tests: every sample by the indices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.artifacts import ShardManifest
from records.fields import image_of
from records.index import key_of, read_index, read_payload


@dataclass(frozen=True, order=True)
class Found:
    """A sample as its index tells it."""

    split: str
    label: int
    content: bytes
    """Of the image."""
    key: str
    shard: int


def read_found(folder: Path) -> list[Found]:
    """Return every sample of finished shards, in their order; all checksums are compared."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    found = []
    for number, entry in enumerate(manifest.shards):
        assert entry.first == len(found)
        for row in read_index(uri, entry):
            content = image_of(read_payload(entry.uri(uri), row), manifest)
            found.append(Found(entry.split, int(row["label"]), content, key_of(row), number))
    return found


def without_key(name: str) -> str:
    """Return the name of a file without the key of its job: sources at other places have other keys."""
    return re.sub(r"-[0-9a-f]{8}(?=[-.])", "", name)
