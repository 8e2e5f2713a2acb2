"""`shardline data verify`: every checksum of a folder of shards, by several processes.

The manifest's checksums find the file, the index's the sample in it. In a bucket the content is read too, in pieces,
so that what counts is what a reader gets; the checksums that the bucket keeps are a quicker question to ask.
"""

from __future__ import annotations

import multiprocessing
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest, find_damage
from contracts.errors import DataError
from contracts.process import available_cores
from records.description import read_path
from records.index import NO_LABEL, Index, find_damage_of, key_of, read_part
from records.index_parts import make_records, read_layout, read_part_rows

# A shard that is wrong throughout is named once, not a million times.
MAX_NAMED_SAMPLES = 10
# Reading a bucket is waiting more than computing; each stream holds three chunks of 16 MiB at most.
_STREAMS_PER_CORE = 2
_LEAST_STREAMS = 4


def verify(
    folder_uri: str, *, processes: int | None, progress: Callable[[int, int], None], stored: bool = False
) -> list[str]:
    """Compare every byte with its checksum; return what is wrong, a line each.

    Args:
        folder_uri: Folder of shards.
        processes: Number of processes that read; None: one a core, for a bucket more.
        progress: Called with the number of files done, and of all.
        stored: In a bucket, compare the checksums that it keeps, and read nothing.

    Raises:
        DataError: There is no manifest.
        TryAgain: A bucket does not answer.
    """
    manifest = ShardManifest.load(folder_uri)
    files = manifest.owned_files()
    rows = _Rows(folder_uri, manifest, stored=stored)
    findings: dict[str, list[str]] = {}
    processes = min(processes or _count_streams(folder_uri), len(files))
    if processes == 1:
        for done, entry in enumerate(files, start=1):
            findings[entry.name] = check_file(folder_uri, entry, rows.of(entry), stored=stored)
            progress(done, len(files))
    else:
        # Spawned: a fork would copy the locks of whatever threads this process has.
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            jobs = {pool.submit(check_file, folder_uri, one, rows.of(one), stored=stored): one.name for one in files}
            for done, job in enumerate(as_completed(jobs), start=1):
                findings[jobs[job]] = job.result()
                progress(done, len(files))
    return [line for entry in files for line in findings[entry.name]]


@dataclass(frozen=True)
class ShardRows:
    """Where the rows of a shard are: enough to find its samples, and little enough to be sent to a process."""

    index: FileEntry
    """The file of the index that holds them."""
    first: int
    """Place of the first of them in that file."""
    whole_format: str | None
    """Format of the shards where the rows are those of whole samples (index version 2)."""

    def read(self, folder_uri: str, samples: int) -> Index:
        """Return them as records; only what tells where samples are.

        Raises:
            DataError: The file is missing or damaged.
        """
        uri = self.index.uri(folder_uri)
        if self.whole_format is None:
            return read_part(uri, self.first, samples)
        return make_records(read_part_rows(uri, read_layout(uri), self.first, samples), NO_LABEL, 0)


class _Rows:
    """Finds the rows of shards in files of the index that are not damaged themselves."""

    def __init__(self, folder_uri: str, manifest: ShardManifest, *, stored: bool) -> None:
        self._whole_format = manifest.format if manifest.whole_samples else None
        self._files = [
            None if _find_lasting_damage(folder_uri, entry, stored=stored) else entry
            for entry in manifest.index_files()
        ]
        self._firsts = [0] if manifest.index is not None else [part.first for part in manifest.index_parts]

    def of(self, entry: FileEntry) -> ShardRows | None:
        """Return where the rows of a shard are; None of another file, or where the index is damaged."""
        if not isinstance(entry, ShardEntry):
            return None
        number = bisect_right(self._firsts, entry.first) - 1
        index = self._files[number]
        return ShardRows(index, entry.first - self._firsts[number], self._whole_format) if index else None


def check_file(folder_uri: str, entry: FileEntry, rows: ShardRows | None, *, stored: bool = False) -> list[str]:
    """Return what is wrong with one file: nothing, or the file, and the samples of a shard.

    Args:
        folder_uri: Folder of shards.
        entry: What the manifest says about the file.
        rows: Where the rows of a shard are; None of another file, and when the index is damaged itself.
        stored: As for `verify`.
    """
    damage = _find_lasting_damage(folder_uri, entry, stored=stored)
    if damage is None:
        return []
    lines = [damage]
    if isinstance(entry, ShardEntry) and rows is not None and storage.exists(entry.uri(folder_uri)):
        hit = (
            "no image is hit, but a header, a label or a description"
            if rows.whole_format is None
            else "no sample is hit, but what is around them"
        )
        lines += _find_damaged_samples(folder_uri, entry, rows) or [f"{entry.name}: {hit}"]
    return lines


def _count_streams(folder_uri: str) -> int:
    if storage.is_local(folder_uri):
        return available_cores()
    return max(_LEAST_STREAMS, _STREAMS_PER_CORE * available_cores())


def _find_lasting_damage(folder_uri: str, entry: FileEntry, *, stored: bool) -> str | None:
    """Return what is wrong with a file, also when it is read again: a byte that changed on its way is no damage."""
    damage = find_damage(folder_uri, [entry], read=not stored)
    if damage is None or storage.is_local(folder_uri):
        return damage
    return find_damage(folder_uri, [entry], read=not stored)


def _find_damaged_samples(folder_uri: str, entry: ShardEntry, rows: ShardRows) -> list[str]:
    uri = entry.uri(folder_uri)
    try:
        part = rows.read(folder_uri, entry.samples)
    except DataError as error:
        return [f"{entry.name}: {error.given}"]
    lines: list[str] = []
    with storage.open_read(uri) as stream:
        for record in part:
            stream.seek(int(record["offset"]))
            damage = find_damage_of(stream.read(int(record["size"])), record)
            if damage is not None:
                named = len(lines) < MAX_NAMED_SAMPLES
                source = read_path(uri, record, whole_format=rows.whole_format) if named else None
                where = f"{entry.name}, sample {key_of(record)} at offset {int(record['offset'])}: {damage}"
                lines.append(f"{where} ({source})" if source else where)
    more = len(lines) - MAX_NAMED_SAMPLES
    return lines[:MAX_NAMED_SAMPLES] + ([f"{entry.name}: {more} more samples"] if more > 0 else [])
