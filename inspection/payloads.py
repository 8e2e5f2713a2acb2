"""Reading single images out of shards: one after the other from files, many at a time by ranged reads from a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from contracts import storage
from records.index import read_payload

# Ranged reads under way, which is also the number of images held: enough to hide a bucket's latency of some 30 ms.
_THREADS = 32


def read_payloads(wanted: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Yield image bytes, in order, each compared with its checksum.

    Args:
        wanted: URI of the shard, and the sample's element of the index.

    Raises:
        DataError: An image is damaged, or its shard is not there.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="payload") as pool:
        remaining = iter(wanted)
        while batch := list(islice(remaining, _THREADS)):
            if storage.is_local(batch[0][0]):
                yield from (read_payload(uri, record) for uri, record in batch)
            else:
                yield from pool.map(read_payload, *zip(*batch, strict=True))
