"""Processes as nodes: each reads its part of an epoch from a bucket, with a cache of its own."""

import multiprocessing
from pathlib import Path

from contracts.artifacts import SampleOrder, ShardManifest
from tests.trainer.data.conftest import open_reader
from trainer.data.bucket.plan import check_working_set
from trainer.data.order.cursor import slot_requests, stream_readers
from trainer.data.order.resolve import make_order, resolve_order

STREAMS, BATCH, SLOT = 24, 96, 12
RANGE_BYTES = 32 << 10


def read_as_nodes(uri: str, caches: Path, nodes: int) -> int:
    """Read an epoch as so many nodes; return the bytes of the training split.

    A node's cache is a tenth of the data, or what it needs at least.

    Raises:
        RuntimeError: A node failed; it has said why.
    """
    total = sum(shard.bytes for shard in ShardManifest.load(uri).shards if shard.split == "train")
    fields = {
        "order": "blocks",
        "range_bytes": RANGE_BYTES,
        "block_bytes": RANGE_BYTES,
        "canonical_streams": STREAMS,
        "cache_bytes": max(int(1.2 * (STREAMS + 1) * RANGE_BYTES), total // 10),
    }
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_read_node, args=(uri, caches / f"cache-{node}", node, nodes, fields))
        for node in range(nodes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes of {nodes} nodes: {[process.exitcode for process in processes]}")
    return total


def _read_node(uri: str, cache: Path, node: int, nodes: int, fields: dict[str, object]) -> None:
    """Read an epoch as one node of several; ends with an error unless every sample is right."""
    reader = open_reader(uri, cache=cache, **fields)
    manifest = ShardManifest.load(uri)
    record = resolve_order(reader.data, uri, manifest, None).order
    assert isinstance(record, SampleOrder)
    check_working_set(reader.data, uri, manifest, record)
    order = make_order(record, manifest, seed=1)
    readers = stream_readers(order, global_batch_size=BATCH, slot_size=SLOT, ranks=nodes)
    assert readers is not None
    reader.set_order(order, global_batch_size=BATCH, streams=readers[node], readers=nodes)
    # One rank a node: all of the node's cache is its own.
    with reader.prefetcher(0, epochs=1, ranks=1) as ahead:
        for request in slot_requests(
            0, order=order, epochs=1, global_batch_size=BATCH, slot_size=SLOT, rank=node, ranks=nodes
        ):
            reader.prepare(list(request.samples), request)
            for place in request.samples:
                reader.sample(place)
            ahead.passed(request)
