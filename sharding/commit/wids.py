"""A list of the shards for WIDS, which reads samples of WebDataset tars by their number: a file a split.

Format: https://github.com/webdataset/wids, version 1. URLs are relative to the file, so that a folder can be
moved; of a chain, the folder that holds all of them. WIDS reads whole shards: tombstones are counted with the samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry
from contracts.config import SPLITS


def name_of(split: str) -> str:
    """Return the name of the file that lists a split's shards."""
    return f"wids-{split}.json"


def publish_wids(output_uri: str, shards: Sequence[ShardEntry]) -> list[FileEntry]:
    """Publish the lists of all splits that have shards; return their entries."""
    entries = []
    for split in SPLITS:
        listed = [
            {"url": entry.relative_path, "nsamples": entry.samples + entry.tombstones, "filesize": entry.bytes}
            for entry in shards
            if entry.split == split
        ]
        if listed:
            content = (json.dumps({"wids_version": 1, "shardlist": listed}, indent=1) + "\n").encode()
            storage.publish(storage.join(output_uri, name_of(split)), content)
            entries.append(FileEntry(name=name_of(split), bytes=len(content), crc32c=storage.crc32c(content)))
    return entries
