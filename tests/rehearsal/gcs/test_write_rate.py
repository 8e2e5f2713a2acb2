"""One write per second to an object: what is refused with 429, and that every client's retry finishes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage

from contracts import storage
from rehearsal.gcs import BucketServer

LIMIT_S = 30
MIB = 1 << 20
UPLOAD = "/upload/storage/v1/b/b/o?name=x&uploadType="
RELATED = "--=\r\n\r\n{}\r\n--=\r\n\r\nnew\r\n--=--"


class Clock:
    """Seconds that pass when a test says so, and by a step with each write."""

    now_s = 0.0
    step_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    root = tmp_path / "buckets"
    with BucketServer(root, buckets=["b"], is_open=True, write_interval_s=1.0, clock=clock) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def send(server: BucketServer, method: str, path: str, body: bytes | str = b"", **headers: str) -> requests.Response:
    url = path if path.startswith("http") else server.endpoint + path
    return requests.request(method, url, data=body, headers=headers, timeout=LIMIT_S)


@pytest.mark.parametrize("kind", ["multipart", "resumable"])
def test_a_second_write_is_refused_and_can_be_sent_again(server: BucketServer, clock: Clock, kind: str) -> None:
    for name in ("x", "other"):
        assert send(server, "POST", f"/upload/storage/v1/b/b/o?name={name}&uploadType=media", b"first").ok
    url, related = f"{UPLOAD}{kind}", {"Content-Type": "multipart/related; boundary=="}
    session = send(server, "POST", url).headers["Location"] if kind == "resumable" else ""

    def again() -> requests.Response:
        if kind == "resumable":
            return send(server, "PUT", session, b"new", **{"Content-Range": "bytes 0-2/3"})
        return send(server, "POST", url, RELATED, **related)

    for clock.now_s in (0.0, 0.999):
        refused = again()
        assert refused.status_code == 429 and "rateLimitExceeded" in refused.text
        assert send(server, "GET", "/storage/v1/b/b/o/x?alt=media").content == b"first"
    clock.now_s = 1.0
    assert again().ok
    assert send(server, "GET", "/storage/v1/b/b/o/x?alt=media").content == b"new"
    # Of refused attempts nothing is left.
    assert list((server.root / ".gcs" / "uploads").iterdir()) == []


def test_clients_try_again(server: BucketServer, clock: Clock) -> None:
    # Half an interval per write: every write but the first is refused once, and its retry is taken.
    clock.step_s = 0.5
    client = google_storage.Client(project="p", credentials=AnonymousCredentials())
    blob = client.bucket("b").blob("x")
    files = fsspec.filesystem("gs", skip_instance_cache=True)
    writes: list[tuple[bytes, Callable[[], object]]] = [
        (b"first", lambda: blob.upload_from_string(b"first")),
        (b"c" * MIB, lambda: client.bucket("b").blob("x", chunk_size=MIB // 4).upload_from_string(b"c" * MIB)),
        (b"gcsfs", lambda: files.pipe_file("b/x", b"gcsfs")),
        (b"ours", lambda: storage.replace("gs://b/x", b"ours")),
    ]
    for content, write in writes:
        write()
        assert client.bucket("b").blob("x").download_as_bytes() == content
    assert sum(entry.status == 429 for entry in server.access_log.entries()) == len(writes) - 1
    client.close()
