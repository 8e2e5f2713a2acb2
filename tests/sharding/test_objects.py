"""Objects of a bucket, read in batches: in order, pinned, checked, within bounds."""

import gc
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.errors import StorageError, TryAgain
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from sharding import objects
from sharding.sources import Reference
from sharding.write.objects import read_objects
from sharding.write.stream import cut

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NAMES = [f"a/{number:03d}.png" for number in range(40)] + ["a/50%.png", "b/what? a#1.png", "b/{0}.png", "b/ü.png"]


@pytest.fixture
def listed(bucket_server: BucketServer) -> Iterator[list[Reference]]:
    for name in NAMES:
        storage.publish(f"gs://bucket-1/raw/{name}", name.encode() * 100)
    bucket_server.access_log.clear()
    yield [
        Reference(info.name.encode(), 0, 0, info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    gc.collect()


def no_file(reference: Reference) -> bytes:
    raise AssertionError(reference)


def read(references: list[Reference], **options: int) -> list[bytes]:
    found = list(read_objects("gs://bucket-1/raw", references, no_file, requests=8, **options))
    assert [one for one, _ in found] == references
    return [content for _, content in found]


def test_all_in_order_one_request_each(listed: list[Reference], bucket_server: BucketServer) -> None:
    assert read(listed[::-1], bytes_in_flight=4000) == [one.path * 100 for one in listed[::-1]]
    requests = bucket_server.access_log.entries(operation="objects.media")
    # A name that gcsfs cannot ask for is read by the other client.
    assert sorted(request.object for request in requests) == sorted(f"raw/{name}" for name in NAMES)


def test_faults_are_survived_and_checksums_compared(listed: list[Reference], bucket_server: BucketServer) -> None:
    bucket_server.faults.set(
        Rule(object="raw/a/003.png", status=503, limit=1),
        Rule(object="raw/a/005.png", corrupt_at=7, limit=1),
        Rule(object="raw/a/007.png", truncate_at=9, quietly=True, limit=1),
        Rule(object="raw/a/009.png", reset=True, limit=1),
    )
    assert read(listed) == [one.path * 100 for one in listed]
    assert bucket_server.faults.hits() == [1, 1, 1, 1]


def test_another_generation_is_not_read(listed: list[Reference]) -> None:
    storage.replace("gs://bucket-1/raw/a/001.png", NAMES[1].encode() * 100)
    with pytest.raises(TryAgain, match=r"raw/a/001\.png vanished or was replaced"):
        read(listed)


def test_no_permission_is_said(listed: list[Reference], bucket_server: BucketServer) -> None:
    bucket_server.faults.set(Rule(object="raw/a/002.png", status=403))
    with pytest.raises(StorageError, match="no permission"):
        read(listed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("objects")]


def test_files_and_objects_of_one_manifest(listed: list[Reference]) -> None:
    mixed = [Reference(b"gs://bucket-1/raw/" + one.path, *one[1:]) for one in listed]
    mixed.insert(3, Reference(b"local.png", 0, 0, 5, 1))
    found = dict(read_objects("file:///data", mixed, lambda one: b"here:" + one.path, requests=8))
    assert found[mixed[3]] == b"here:local.png"
    assert found[mixed[4]] == listed[3].path * 100


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(1, 20_000))
def test_batches_are_bounded_and_whole(sizes: list[int], bound: int) -> None:
    references = [Reference(b"%d" % number, 0, 0, size, 0) for number, size in enumerate(sizes)]
    batches = list(cut(references, most_bytes=bound, most_files=objects.BATCH_FILES))
    assert [one for batch in batches for one in batch] == references
    assert all(len(batch) == 1 or sum(one.size for one in batch) <= bound for batch in batches)
