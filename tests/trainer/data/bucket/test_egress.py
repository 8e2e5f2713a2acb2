"""What leaves the bucket in an epoch, counted at the server: each node is a process with a cache of its own."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import BUCKET_SHARDS, shard_requests, upload
from tests.trainer.data.nodes import read_as_nodes
from tests.trainer.data.synthetic import write_shards

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


@pytest.mark.parametrize(
    ("nodes", "shards"),
    [
        (1, 48),
        pytest.param(2, 48, marks=pytest.mark.slow),
    ],
)
def test_each_byte_leaves_the_bucket_about_once(
    bucket_server: BucketServer, tmp_path: Path, nodes: int, shards: int
) -> None:
    write_shards(tmp_path / "shards", shards=shards, samples=64, sample_bytes=2000)
    upload(tmp_path / "shards")
    bucket_server.access_log.clear()
    total = read_as_nodes(BUCKET_SHARDS, tmp_path, nodes)
    egress = sum(shard_requests(bucket_server)) / total
    print(f"{nodes} nodes, {shards} shards: egress {egress:.3f}")
    assert 0.9 < egress <= 1.05
