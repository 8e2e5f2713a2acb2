"""What leaves the bucket in an epoch, counted at the server: each node is a process with a cache of its own."""

import gc
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import SampleOrder, ShardManifest
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import BUCKET_SHARDS, open_reader, shard_requests, upload
from tests.trainer.data.synthetic import write_shards
from trainer.cursor import slot_requests, stream_readers
from trainer.data.plan import check_working_set
from trainer.order import make_order, resolve_order

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

STREAMS, BATCH, SLOT = 24, 96, 12


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


def read_node(uri: str, cache: Path, node: int, nodes: int, fields: dict[str, object]) -> None:
    """Read an epoch as one node of several; ends with an error unless every sample is right."""
    reader = open_reader(uri, cache=cache, **fields)
    manifest = ShardManifest.load(uri)
    record = resolve_order(reader.data, uri, manifest, None).order
    assert isinstance(record, SampleOrder)
    check_working_set(reader.data, uri, manifest, record)
    order = make_order(record, uri, manifest, seed=1)
    readers = stream_readers(order, global_batch_size=BATCH, slot_size=SLOT, ranks=nodes)
    assert readers is not None
    reader.follow(order, global_batch_size=BATCH, streams=readers[node], readers=nodes)
    # One rank a node: all of the node's cache is its own.
    with reader.prefetcher(0, epochs=1, ranks=1) as ahead:
        for request in slot_requests(
            0, order=order, epochs=1, global_batch_size=BATCH, slot_size=SLOT, rank=node, ranks=nodes
        ):
            reader.prepare(list(request.samples), request)
            for place in request.samples:
                reader.content(place)
            ahead.passed(request)


@pytest.mark.parametrize(
    ("nodes", "shards"),
    [
        (1, 48),
        (2, 48),
        *(pytest.param(nodes, 500, marks=pytest.mark.slow) for nodes in (1, 2, 4, 8)),
    ],
)
def test_each_byte_leaves_the_bucket_about_once(
    bucket_server: BucketServer, tmp_path: Path, nodes: int, shards: int
) -> None:
    manifest = write_shards(tmp_path / "shards", shards=shards, samples=64, sample_bytes=2000)
    upload(tmp_path / "shards")
    total = sum(shard.bytes for shard in manifest.shards)
    fields = {
        "order": "blocks",
        "range_bytes": 32 << 10,
        "block_bytes": 32 << 10,
        "canonical_streams": STREAMS,
        # A node's cache is smaller than its part of the data.
        "cache_bytes": max(int(1.2 * (STREAMS + 1) * (32 << 10)), total // 10),
    }
    bucket_server.access_log.clear()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=read_node, args=(BUCKET_SHARDS, tmp_path / f"cache-{node}", node, nodes, fields))
        for node in range(nodes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    requests = shard_requests(bucket_server)
    egress = sum(requests) / total
    print(f"{nodes} nodes, {shards} shards: egress {egress:.3f}, {len(requests)} requests")
    assert 0.9 < egress <= 1.05
    assert storage.exists(BUCKET_SHARDS)
