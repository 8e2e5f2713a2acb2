"""`shardline data verify`: compare every byte of a folder of shards with its checksum, in several processes.

Checksums of the manifest find a damaged file, those of the index the damaged sample in it. In a bucket the content is
read as well, unless `stored` compares only the checksums that the bucket keeps.
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
from records.index import find_sample_damage, key_of, read_index

# Damaged samples that are listed per shard.
_MAX_NAMED_SAMPLES = 10
# Reading a bucket is bound by latency; each stream takes at most three chunks of 16 MiB.
_STREAMS_PER_CORE = 2
_LEAST_STREAMS = 4


def verify(
    folder_uri: str, *, processes: int | None, progress: Callable[[int, int], None], stored: bool = False
) -> list[str]:
    """Compare every byte with its checksum; return a line for each damage.

    Args:
        folder_uri: Folder of shards.
        processes: Number of reading processes; None: one per core, or more for a bucket.
        progress: Called with the number of finished files and of all files.
        stored: In a bucket, compare the checksums that it keeps, without reading.

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
        for num_done, entry in enumerate(files, start=1):
            findings[entry.name] = _check_file(folder_uri, entry, manifest.format, stored)
            progress(num_done, len(files))
    else:
        # Spawned, since a fork would copy the locks of other threads.
        with ProcessPoolExecutor(min(processes, len(files)), multiprocessing.get_context("spawn")) as pool:
            jobs = {pool.submit(_check_file, folder_uri, file, manifest.format, stored): file.name for file in files}
            for num_done, job in enumerate(as_completed(jobs), start=1):
                findings[jobs[job]] = job.result()
                progress(num_done, len(files))
    return [line for entry in files for line in findings[entry.name]]


def _check_file(folder_uri: str, entry: FileEntry, shard_format: str, stored: bool) -> list[str]:
    """Return the damage of a file and, for a shard, of its samples; empty if intact."""
    damage = find_damage(folder_uri, [entry], read=not stored)
    if damage is not None and not storage.is_local(folder_uri):
        # Read again: the error may be in the transfer.
        damage = find_damage(folder_uri, [entry], read=not stored)
    if damage is None:
        return []
    if not isinstance(entry, ShardEntry) or not storage.exists(entry.uri(folder_uri)):
        return [damage]
    try:
        rows = read_index(folder_uri, entry)
    except DataError:
        # The damage of the index is reported by its own entry.
        return [damage]
    lines: list[str] = []
    with storage.open_read(entry.uri(folder_uri)) as stream:
        for row in rows:
            stream.seek(int(row["offset"]))
            content = stream.read(int(row["size"]))
            if sample_damage := find_sample_damage(content, row):
                position = f"{entry.name}, sample {key_of(row)} at offset {int(row['offset'])}: {sample_damage}"
                path = path_in(content, shard_format)
                lines.append(f"{position} ({path})" if path else position)
    more = len(lines) - _MAX_NAMED_SAMPLES
    if more > 0:
        lines[_MAX_NAMED_SAMPLES:] = [f"{entry.name}: {more} more samples"]
    return [damage, *(lines or [f"{entry.name}: the damage is outside of the samples"])]
