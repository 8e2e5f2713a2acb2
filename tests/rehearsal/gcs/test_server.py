"""The server: requests of no known form, and requests at the same time."""

import contextlib
import gc
import json
import socket
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from rehearsal.gcs import BucketServer

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CONTENT = bytes(range(256)) * 4096


@contextlib.contextmanager
def bucket_of(endpoint: str, name: str = "bucket-1") -> Iterator[storage.Bucket]:
    """A bucket through a client of its own."""
    options = {"api_endpoint": endpoint}
    with storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options) as client:
        yield client.bucket(name)
    # The client forgets the connection of a streamed answer that is an error: collected here and not elsewhere.
    gc.collect()


def test_an_open_download_outlives_its_object(bucket_server: BucketServer) -> None:
    url = f"{bucket_server.endpoint}/storage/v1/b/bucket-1/o/x?alt=media"
    with bucket_of(bucket_server.endpoint) as bucket:
        bucket.blob("x").upload_from_string(CONTENT * 8)
        answer = bucket.client._http.get(url, stream=True, timeout=20)
        pieces = answer.iter_content(1000)
        read = len(next(pieces))
        bucket.blob("x").upload_from_string(b"new")
        assert read + sum(len(piece) for piece in pieces) == len(CONTENT) * 8


def send(server: BucketServer, *lines: str, body: bytes = b"") -> bytes:
    """Send a request as it stands, end the sending side, and return all that comes back."""
    address = server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "Host: 127.0.0.1", "", ""]).encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


UPLOAD = "POST /upload/storage/v1/b/bucket-1/o?uploadType=media&name=cut HTTP/1.1"


@pytest.mark.parametrize("body", [b"10\r\nhalf", b"-5\r\nwhole\r\n"])
def test_a_chunked_body_that_breaks_off_is_no_object(bucket_server: BucketServer, body: bytes) -> None:
    assert send(bucket_server, UPLOAD, "Transfer-Encoding: chunked", body=body) == b""
    assert bucket_server.objects.find("bucket-1", "cut") is None
    assert not bucket_server.failures


@pytest.mark.parametrize("bucket", ["..%2F..%2Fetc", ".gcs"])
def test_no_bucket_leads_out_of_the_root(bucket_server: BucketServer, bucket: str) -> None:
    before = sorted(path for path in bucket_server.root.parent.rglob("*"))
    for line in (
        f"POST /upload/storage/v1/b/{bucket}/o?uploadType=media&name=x HTTP/1.1",
        f"PUT /{bucket}/x HTTP/1.1",
        f"GET /storage/v1/b/{bucket}/o/passwd?alt=media HTTP/1.1",
    ):
        assert send(bucket_server, line, "Content-Length: 0")[9:12] in (b"404", b"501")
    name = json.dumps({"name": bucket.replace("%2F", "/").replace("%2e", ".")})
    answer = send(bucket_server, "POST /storage/v1/b HTTP/1.1", f"Content-Length: {len(name)}", body=name.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert sorted(path for path in bucket_server.root.parent.rglob("*")) == before
