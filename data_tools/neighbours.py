"""`shardline data export-index`: index files by which other libraries read the shards, written on demand.

    SHARD.idx           where samples are, for NVIDIA DALI: one beside the manifest for each shard
    wids-SPLIT.json     the shards of a split, for WIDS, which reads samples of WebDataset tars by their number

Files are created, never replaced: equal ones that are there are success. Shards of index version 1 have theirs already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO

from contracts import storage
from contracts.artifacts import ShardEntry, ShardManifest
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError
from records.index import Index
from records.samples import SampleIndex, open_samples
from records.tar import BLOCK_BYTES
from records.whole_sample import read_member

# Shards read at a time: of a bucket each has a chunk of 16 MiB in memory.
_THREADS = 8
# Around the data of a record: its length and the checksum of that before it, the checksum of the data behind it.
_TFRECORD_HEAD, _TFRECORD_FRAMING = 12, 16


def export_index(
    folder_uri: str, *, dali: bool = True, wids: bool = True, progress: Callable[[int, int], None] = lambda *_: None
) -> list[str]:
    """Write the files; return their names.

    Args:
        folder_uri: Folder of shards, with index version 2.
        dali: Write DALI's index of every shard. Samples that are gone from the source are left out of it.
        wids: Write the lists for WIDS; shards of TFRecords have none.
        progress: Called with the number of shards done, and of all.

    Raises:
        ConfigError: The shards have index version 1, or a file of another content is there.
        DataError: There is no manifest, or a shard is damaged or missing.
    """
    manifest = ShardManifest.load(folder_uri)
    if not manifest.whole_samples:
        raise ConfigError(
            f"{storage.display(folder_uri)} has an index of version 1",
            allowed="shards of this version; those of version 1 were written together with these files",
            todo="use the files beside the shards, or DALI's own tools for shards that others wrote",
        )
    names = []
    if dali:
        samples = open_samples(manifest, folder_uri)
        describe = partial(_index_for_dali, folder_uri, manifest.format, samples)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="export") as pool:
            for done, (entry, content) in enumerate(
                zip(manifest.shards, pool.map(describe, manifest.shards), strict=True), start=1
            ):
                names.append(f"{entry.name.rpartition('.')[0]}.idx")
                _publish(folder_uri, names[-1], content)
                progress(done, len(manifest.shards))
    if wids and manifest.format == "webdataset":
        for name, content in _lists_for_wids(manifest):
            names.append(name)
            _publish(folder_uri, name, content)
    return names


def _index_for_dali(folder_uri: str, shard_format: str, samples: SampleIndex, entry: ShardEntry) -> bytes:
    records: Index = samples[entry.first : entry.first + entry.samples]
    if shard_format == "tfrecord":
        # A line a record, `offset size`, framing included. Source: tools/tfrecord2idx of DALI.
        places = zip(records["offset"].tolist(), records["size"].tolist(), strict=True)
        return "".join(f"{at - _TFRECORD_HEAD} {size + _TFRECORD_FRAMING}\n" for at, size in places).encode()
    # A line a sample, with `ext offset size name` of each member. It is split at blanks: names hold none.
    # Source: tools/wds2idx.py of DALI, version 1.2 of its format.
    try:
        with storage.open_read(entry.uri(folder_uri)) as stream:
            places = zip(records["offset"].tolist(), records["size"].tolist(), strict=True)
            lines = [" ".join(_components(stream, at, at + size, entry)) for at, size in places]
    except FileNotFoundError:
        raise _damaged(entry, "is not there") from None
    return "".join(f"{line}\n" for line in (f"v1.2 {len(lines)}", *lines)).encode()


def _components(stream: BinaryIO, at: int, end: int, entry: ShardEntry) -> Iterator[str]:
    """Yield what DALI's index says of each member of a sample; its headers are read, and nothing else."""
    while at < end:
        stream.seek(at)
        try:
            member = read_member(stream.read(BLOCK_BYTES))
        except ValueError as error:
            raise _damaged(entry, f"has no tar header at {at} ({error})") from None
        at += BLOCK_BYTES
        yield f"{member.name.partition('.')[2]} {at} {member.size} {member.name}"
        at += member.size + -member.size % BLOCK_BYTES


def _lists_for_wids(manifest: ShardManifest) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the list of each split that has shards.

    Format: https://github.com/webdataset/wids, version 1. URLs are relative to the file, so that a folder can be
    moved; of a chain, the folder that holds all of them. WIDS reads whole shards: tombstones are counted too.
    """
    for split in SPLITS:
        listed = [
            {"url": entry.relative_path, "nsamples": entry.samples + entry.tombstones, "filesize": entry.bytes}
            for entry in manifest.shards
            if entry.split == split
        ]
        if listed:
            content = json.dumps({"wids_version": 1, "shardlist": listed}, indent=1) + "\n"
            yield f"wids-{split}.json", content.encode()


def _publish(folder_uri: str, name: str, content: bytes) -> None:
    try:
        storage.publish(storage.join(folder_uri, name), content)
    except storage.AlreadyPublished:
        raise ConfigError(
            f"{storage.display(folder_uri)} has a file {name} of other content",
            allowed="a folder without it, or with the one that these shards give",
            todo="delete it, and run the command again",
        ) from None


def _damaged(entry: ShardEntry, what: str) -> DataError:
    return DataError(
        f"shard {entry.relative_path} {what}",
        allowed="shards as the shard stage left them",
        todo="run shardline data verify, then the shard stage with --fresh",
    )
