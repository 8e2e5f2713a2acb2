"""`shardline data verify`: compare every byte of a folder of shards with its checksum, in several processes.

The manifest's checksums find a damaged file, the index's the damaged sample in it. In a bucket the content is read too,
so that what a reader gets is what counts; the checksums that the bucket keeps are a quicker question.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest, find_damage
from contracts.errors import DataError
from contracts.process import available_cores
from records.fields import path_in
from records.index import find_damage_of, key_of, read_index

# A shard that is wrong throughout is named once, not a million times.
_MAX_NAMED_SAMPLES = 10
# Reading a bucket is waiting more than computing; each stream holds three chunks of 16 MiB at most.
_STREAMS_PER_CORE = 2
_LEAST_STREAMS = 4


def verify(
    folder_uri: str, *, processes: int | None, progress: Callable[[int, int], None], stored: bool = False
) -> list[str]:
    """Compare every byte with its checksum; return a line for each damage.

    Args:
        folder_uri: Folder of shards.
        processes: Number of processes that read; None: one per core, for a bucket more.
        progress: Called with the number of files done, and of all.
        stored: In a bucket, compare the checksums that it keeps, and read nothing.

    Raises:
        DataError: There is no manifest.
        TryAgain: A bucket does not answer.
    """
    manifest = ShardManifest.load(folder_uri)
    files = manifest.owned_files()
    findings: dict[str, list[str]] = {}
    if processes is None:
        cores = available_cores()
        processes = cores if storage.is_local(folder_uri) else max(_LEAST_STREAMS, _STREAMS_PER_CORE * cores)
    if min(processes, len(files)) == 1:
        for done, entry in enumerate(files, start=1):
            findings[entry.name] = _check_file(folder_uri, entry, manifest.format, stored)
            progress(done, len(files))
    else:
        # Spawned: a fork would copy the locks of whatever threads this process has.
        with ProcessPoolExecutor(min(processes, len(files)), multiprocessing.get_context("spawn")) as pool:
            jobs = {pool.submit(_check_file, folder_uri, one, manifest.format, stored): one.name for one in files}
            for done, job in enumerate(as_completed(jobs), start=1):
                findings[jobs[job]] = job.result()
                progress(done, len(files))
    return [line for entry in files for line in findings[entry.name]]


def _check_file(folder_uri: str, entry: FileEntry, shard_format: str, stored: bool) -> list[str]:
    """Return what is wrong with a file: nothing, or the file, and of a shard its damaged samples."""
    damage = find_damage(folder_uri, [entry], read=not stored)
    if damage is not None and not storage.is_local(folder_uri):
        # A byte that changed on its way is no damage.
        damage = find_damage(folder_uri, [entry], read=not stored)
    if damage is None:
        return []
    if not isinstance(entry, ShardEntry) or not storage.exists(entry.uri(folder_uri)):
        return [damage]
    try:
        rows = read_index(folder_uri, entry)
    except DataError:
        # The index is a file of its own, with a line of its own.
        return [damage]
    lines: list[str] = []
    with storage.open_read(entry.uri(folder_uri)) as stream:
        for row in rows:
            stream.seek(int(row["offset"]))
            content = stream.read(int(row["size"]))
            if wrong := find_damage_of(content, row):
                where = f"{entry.name}, sample {key_of(row)} at offset {int(row['offset'])}: {wrong}"
                path = path_in(content, shard_format)
                lines.append(f"{where} ({path})" if path else where)
    more = len(lines) - _MAX_NAMED_SAMPLES
    if more > 0:
        lines[_MAX_NAMED_SAMPLES:] = [f"{entry.name}: {more} more samples"]
    return [damage, *(lines or [f"{entry.name}: no sample is hit, but what is around them"])]
