"""Every kind of fault and cost, as Google's client and gcsfs see it."""

import gc
import socket
import time
from collections.abc import Iterator

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY

from rehearsal.gcs import BucketServer, Rule

# The client forgets the connection of a streamed answer that is an error; `bucket` collects it here and not elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

# The client's first pause is a second; the tests need no patience.
RETRY = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05).with_timeout(20)
CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def bucket(bucket_server: BucketServer) -> Iterator[storage.Bucket]:
    with storage.Client(project="p", credentials=AnonymousCredentials()) as client:
        bucket = client.bucket("bucket-1")
        bucket.blob("x").upload_from_string(CONTENT)
        bucket_server.access_log.wait()
        bucket_server.access_log.clear()
        yield bucket
    gc.collect()


def statuses(server: BucketServer, **match: str) -> list[int]:
    return [entry.status for entry in server.access_log.entries(**match)]


def test_busy_answers_are_retried(bucket_server: BucketServer, bucket: storage.Bucket) -> None:
    status = 503
    bucket_server.faults.set(Rule(operation="objects.media", status=status, retry_after_s=1, limit=2))
    assert bucket.blob("x").download_as_bytes(retry=RETRY) == CONTENT
    assert statuses(bucket_server, operation="objects.media") == [status, status, 200]
    bucket_server.faults.set(Rule(status=status, retry_after_s=7))
    answer = bucket.client._http.get(f"{bucket_server.endpoint}/storage/v1/b/bucket-1/o/x", timeout=20)
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "7")
    assert answer.json()["error"]["code"] == status


def test_a_reset_is_a_reset(bucket_server: BucketServer, bucket: storage.Bucket) -> None:
    bucket_server.faults.set(Rule(reset=True))
    with socket.create_connection(("127.0.0.1", int(bucket_server.endpoint.rpartition(":")[2])), timeout=20) as client:
        client.sendall(b"GET /storage/v1/b/bucket-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.parametrize("cut", ["truncate_at", "reset_at"])
def test_a_cut_download_is_continued(bucket_server: BucketServer, bucket: storage.Bucket, cut: str) -> None:
    bucket_server.faults.set(Rule.model_validate({"operation": "objects.media", cut: 300_000, "limit": 1}))
    assert bucket.blob("x").download_as_bytes(retry=RETRY) == CONTENT
    first, *rest = bucket_server.access_log.entries(operation="objects.media")
    assert (first.fault, first.bytes_out) == (True, 300_000)
    assert rest
    assert sum(entry.bytes_out for entry in rest) <= len(CONTENT)


def test_only_the_checksum_notices_a_flipped_bit_and_a_quiet_end(
    bucket_server: BucketServer, bucket: storage.Bucket
) -> None:
    bucket_server.faults.set(Rule(operation="objects.media", corrupt_at=5))
    assert bucket.blob("x").download_as_bytes(checksum=None) != CONTENT
    with pytest.raises(DataCorruption):
        bucket.blob("x").download_as_bytes(checksum="crc32c", retry=RETRY)
    bucket_server.faults.set(Rule(operation="objects.media", truncate_at=300_000, quietly=True))
    assert bucket.blob("x").download_as_bytes(checksum=None) == CONTENT[:300_000]


def test_a_lost_answer_meets_its_own_object(bucket_server: BucketServer, bucket: storage.Bucket) -> None:
    # The upload took effect and its answer was lost: the client's retry is refused by its own precondition.
    bucket_server.faults.set(Rule(operation="uploads", object="y", reset=True, after=True, limit=1))
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("y").upload_from_string(b"abc", if_generation_match=0, retry=RETRY)
    assert bucket.blob("y").download_as_bytes() == b"abc"
    assert statuses(bucket_server, operation="uploads", object="y") == [0, 412]


def test_of_an_interrupted_chunk_whole_multiples_are_kept(bucket_server: BucketServer, bucket: storage.Bucket) -> None:
    session = bucket.client._http
    path = f"{bucket_server.endpoint}/upload/storage/v1/b/bucket-1/o?uploadType=resumable&name=y"
    url = session.post(path, timeout=20).headers["Location"]
    bucket_server.faults.set(Rule(method="PUT", read_at_most=300_000, limit=1))
    with pytest.raises(requests.ConnectionError):
        session.put(url, data=CONTENT, headers={"Content-Range": f"bytes 0-{len(CONTENT) - 1}/*"}, timeout=20)
    asked = session.put(url, headers={"Content-Range": "bytes */*"}, timeout=20)
    assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{(256 << 10) - 1}")


def test_costs_are_counted_in_time(bucket_server: BucketServer, bucket: storage.Bucket) -> None:
    # Not timing but a lower bound: the server may not answer before.
    bucket_server.faults.set(Rule(latency_s=0.2), Rule(operation="objects.media", bytes_per_s=4 << 20))
    began = time.monotonic()
    assert bucket.blob("x").download_as_bytes() == CONTENT
    assert time.monotonic() - began >= 0.44
    assert bucket_server.access_log.entries(operation="objects.media")[0].duration_s >= 0.44
    bucket_server.faults.set(Rule(operation="uploads", bytes_per_s=4 << 20))
    began = time.monotonic()
    bucket.blob("y", chunk_size=2 << 20).upload_from_string(CONTENT)
    assert time.monotonic() - began >= 0.24
