"""`shardline data verify`: every checksum of a folder of shards, by several processes.

The manifest's checksums find the file, the index's the sample in it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest, find_damage
from contracts.errors import DataError
from records.description import read_path
from records.index import open_index, read_payload

# A shard that is wrong throughout is named once, not a million times.
MAX_NAMED_SAMPLES = 10


def verify(folder_uri: str, *, processes: int, progress: Callable[[int, int], None]) -> list[str]:
    """Compare every byte with its checksum; return what is wrong, a line each.

    Args:
        folder_uri: Folder of shards.
        processes: Number of processes that read.
        progress: Called with the number of files done, and of all.

    Raises:
        DataError: There is no manifest.
        StorageError: It is not local.
    """
    manifest = ShardManifest.load(folder_uri)
    storage.local_path(folder_uri)
    files = manifest.owned_files()
    index = find_damage(folder_uri, [manifest.index])
    index_name = None if index else manifest.index.name
    findings: dict[str, list[str]] = {}
    if processes == 1:
        for done, entry in enumerate(files, start=1):
            findings[entry.name] = check_file(folder_uri, entry, index_name)
            progress(done, len(files))
    else:
        # Spawned: a fork would copy the locks of whatever threads this process has.
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            jobs = {pool.submit(check_file, folder_uri, entry, index_name): entry.name for entry in files}
            for done, job in enumerate(as_completed(jobs), start=1):
                findings[jobs[job]] = job.result()
                progress(done, len(files))
    return [line for entry in files for line in findings[entry.name]]


def check_file(folder_uri: str, entry: FileEntry, index_name: str | None) -> list[str]:
    """Return what is wrong with one file: nothing, or the file, and the samples of a shard.

    Args:
        folder_uri: Folder of shards.
        entry: What the manifest says about the file.
        index_name: Name of the index; None when it is damaged itself.
    """
    damage = find_damage(folder_uri, [entry])
    if damage is None:
        return []
    lines = [damage]
    path = storage.local_path(entry.uri(folder_uri))
    if isinstance(entry, ShardEntry) and index_name is not None and path.exists():
        samples = _find_damaged_samples(path, entry, storage.local_path(folder_uri) / index_name)
        lines += samples or [f"{entry.name}: no image is hit, but a header, a label or a description"]
    return lines


def _find_damaged_samples(path: Path, entry: ShardEntry, index_path: Path) -> list[str]:
    lines = []
    for record in open_index(index_path)[entry.first : entry.first + entry.samples]:
        try:
            read_payload(path, record)
        except DataError as error:
            source = read_path(path, record)
            lines.append(f"{error.given.removeprefix(f'shard {path.parent}/')}{f' ({source})' if source else ''}")
    more = len(lines) - MAX_NAMED_SAMPLES
    return lines[:MAX_NAMED_SAMPLES] + ([f"{entry.name}: {more} more samples"] if more > 0 else [])
