"""Reading single images out of shards: one after the other from files, many at a time by ranged reads from a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from contracts import storage
from contracts.artifacts import ShardManifest
from records.index import read_payload
from records.samples import image_of

# Ranged reads under way, which is also the number of images held: enough to hide a bucket's latency of some 30 ms.
_THREADS = 32


def read_images(folder_uri: str, manifest: ShardManifest, records: Iterable[Any]) -> Iterator[bytes]:
    """Yield the image files of samples, in order, each compared with its checksum.

    Args:
        folder_uri: Folder of the shards.
        manifest: Their manifest.
        records: The samples' elements of the index.

    Raises:
        DataError: A sample is damaged, or its shard is not there.
    """
    wanted = ((manifest.shards[int(record["shard"])].uri(folder_uri), record) for record in records)
    return (image_of(stored, manifest) for stored in read_payloads(wanted))


def read_payloads(wanted: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Yield what is stored for samples, in order, each compared with its checksum.

    Args:
        wanted: URI of the shard, and the sample's element of the index.

    Raises:
        DataError: A sample is damaged, or its shard is not there.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="payload") as pool:
        remaining = iter(wanted)
        while batch := list(islice(remaining, _THREADS)):
            if storage.is_local(batch[0][0]):
                yield from (read_payload(uri, record) for uri, record in batch)
            else:
                yield from pool.map(read_payload, *zip(*batch, strict=True))
