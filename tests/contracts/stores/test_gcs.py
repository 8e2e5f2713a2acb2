"""gs:// when things go wrong: which error, which exit code, and what is left."""

import gc
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import google.auth
import pytest
from google.auth.exceptions import DefaultCredentialsError

from contracts import storage
from contracts.errors import StorageError, TryAgain
from contracts.stores import gcs
from rehearsal.gcs import BucketServer, Rule

# See tests/rehearsal/gcs/test_faults.py.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROOT = "gs://bucket-1"
CONTENT = bytes(range(256)) * 4096 * 9  # 9 MiB: above the client's limit for an upload in one request


@pytest.fixture(autouse=True)
def server(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """The server, and a client that waits seconds, not a minute."""
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 1.5)
    yield bucket_server
    gcs.close()
    gc.collect()


def test_a_lost_answer_is_success(server: BucketServer, tmp_path: Path) -> None:
    server.faults.set(Rule(operation="uploads", reset=True, after=True, nth=(1,)))
    storage.publish(f"{ROOT}/x", b"abc")
    assert storage.read_bytes(f"{ROOT}/x") == b"abc"
    assert [entry.status for entry in server.access_log.entries(operation="uploads", object="x")] == [0, 412]
    (tmp_path / "f").write_bytes(CONTENT)
    # The session's start, then its one chunk: that answer is lost.
    server.faults.set(Rule(method="PUT", object="y", status=503, after=True, nth=(1,)))
    storage.publish_file(tmp_path / "f", f"{ROOT}/y")
    assert storage.crc32c_of(f"{ROOT}/y") == storage.crc32c(CONTENT)


def test_an_interrupted_upload_goes_on(server: BucketServer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    server.faults.set(Rule(method="PUT", read_at_most=1_000_000, nth=(1,)))
    storage.publish_file(tmp_path / "f", f"{ROOT}/x")
    assert storage.read_bytes(f"{ROOT}/x") == CONTENT
    assert server.faults.hits() == [1]


def test_a_bucket_that_does_not_exist(tmp_path: Path) -> None:
    uri = "gs://no-such-bucket/x"
    (tmp_path / "f").write_bytes(b"x")
    calls = [
        lambda: storage.exists(uri),
        lambda: storage.read_bytes(uri),
        lambda: storage.list_names(uri),
        lambda: list(storage.list_objects(uri)),
        lambda: storage.publish(uri, b"x"),
        lambda: storage.replace(uri, b"x"),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(StorageError, match="no such bucket") as caught:
            call()
            pytest.fail(f"call {number} raised nothing")
        assert caught.value.exit_code == 2


def test_no_permission(server: BucketServer) -> None:
    server.faults.set(Rule(status=403))
    for call in (
        lambda: storage.read_bytes(f"{ROOT}/x"),
        lambda: storage.publish(f"{ROOT}/x", b"x"),
        lambda: storage.list_names(ROOT),
        lambda: storage.delete(f"{ROOT}/x"),
    ):
        with pytest.raises(StorageError, match="no permission") as caught:
            call()
        assert caught.value.exit_code == 2


def test_a_storm_ends_in_another_attempt(server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 0.3)
    server.faults.set(Rule(status=503))
    (tmp_path / "f").write_bytes(b"x")
    for call in (
        lambda: storage.read_bytes(f"{ROOT}/x"),
        lambda: storage.publish_file(tmp_path / "f", f"{ROOT}/x"),
    ):
        with pytest.raises(TryAgain, match="does not answer") as caught:
            call()
        assert caught.value.exit_code == 75
    server.faults.set()
    assert not storage.exists(f"{ROOT}/x")


def test_bytes_that_changed_on_their_way(server: BucketServer) -> None:
    storage.publish(f"{ROOT}/x", CONTENT)
    server.faults.set(Rule(operation="objects.media", corrupt_at=7, nth=(1,)))
    assert storage.read_bytes(f"{ROOT}/x") == CONTENT
    server.faults.set(Rule(operation="objects.media", corrupt_at=7))
    with pytest.raises(TryAgain, match="another checksum"):
        storage.read_bytes(f"{ROOT}/x")
    # Cut, continued, and cut again: Google's client does not compare what it continued.
    server.faults.set(Rule(operation="objects.media", truncate_at=5 << 20, quietly=True, nth=(1, 2)))
    assert storage.read_bytes(f"{ROOT}/x") == CONTENT


def test_a_broken_download_goes_on_where_it_broke(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "RETRY_DEADLINE_S", 30)
    storage.publish(f"{ROOT}/x", CONTENT)
    server.access_log.clear()
    for cut in (Rule(object="x", truncate_at=3 << 20, limit=2), Rule(object="x", reset_at=3 << 20, limit=2)):
        server.faults.set(cut)
        pieces: list[bytes] = []
        assert storage.copy_range(f"{ROOT}/x", 100, 8 << 20, pieces.append) == 8 << 20
        assert b"".join(pieces) == CONTENT[100 : 100 + (8 << 20)]
        # The client's own pieces are of 8 KiB: slow.
        assert max(map(len, pieces)) == 1 << 20
    sent = [entry.bytes_out for entry in server.access_log.entries(operation="objects.media")]
    assert sent[:3] == [3 << 20, 3 << 20, 2 << 20]
    assert len(sent) == 6
    server.faults.set()
    # Fewer bytes at the end, none behind it.
    assert storage.copy_range(f"{ROOT}/x", len(CONTENT) - 7, 9000, pieces.append) == 7
    assert storage.copy_range(f"{ROOT}/x", len(CONTENT), 10, pieces.append) == 0


def test_an_object_that_is_replaced_on_the_way_is_not_mixed(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both when an answer broke, and between two calls of the client.
    for cut, call_bytes in ((1 << 20, 64 << 20), (0, 1 << 20)):
        monkeypatch.setattr(gcs, "_CALL_BYTES", call_bytes)
        storage.replace(f"{ROOT}/a", bytes(3 << 20))
        server.faults.set(*[Rule(object="a", method="GET", truncate_at=cut, limit=1)] if cut else [])
        pieces: list[bytes] = []

        def sink(piece: bytes, pieces: list[bytes] = pieces) -> None:
            if not pieces:
                storage.replace(f"{ROOT}/a", bytes([1]) * (3 << 20))
            pieces.append(piece)

        with pytest.raises(FileNotFoundError):
            storage.copy_range(f"{ROOT}/a", 0, 3 << 20, sink)
        assert set(b"".join(pieces)) == {0}


def test_a_generation_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "CHUNK_BYTES", 1 << 20)
    uri = f"{ROOT}/x"
    storage.publish(uri, CONTENT)
    (info,) = storage.list_objects(ROOT)
    stream = storage.open_read(uri)
    assert stream.read(10) == CONTENT[:10]
    storage.replace(uri, b"new" * (4 << 20))
    with pytest.raises(FileNotFoundError):
        stream.read(2 << 20)
    for read in (
        lambda: storage.read_bytes(uri, info.generation),
        lambda: storage.read_range(uri, 0, 1, info.generation),
        lambda: storage.open_read(uri, info.generation),
    ):
        with pytest.raises(FileNotFoundError):
            read()
    assert storage.read_bytes(uri) == b"new" * (4 << 20)


def test_what_bulk_reading_cannot_explain_is_read_again(server: BucketServer) -> None:
    for number in range(8):
        storage.publish(f"{ROOT}/{number}", b"%d" % number * 1000)
    wanted = [
        storage.ReadRequest(f"{ROOT}/{info.name}", info.generation, info.crc32c) for info in storage.list_objects(ROOT)
    ]
    server.faults.set(Rule(object="3", corrupt_at=1, nth=(1,)), Rule(object="5", truncate_at=7, quietly=True, nth=(1,)))
    assert storage.read_many(wanted) == [b"%d" % number * 1000 for number in range(8)]
    assert server.faults.hits() == [1, 1]
    storage.replace(f"{ROOT}/2", b"new")
    server.faults.set()
    assert [isinstance(content, FileNotFoundError) for content in storage.read_many(wanted[1:4])] == [
        False,
        True,
        False,
    ]
    server.faults.set(Rule(status=403))
    with pytest.raises(StorageError, match="no permission"):
        storage.read_many(wanted)


def _read_in_child(uri: str, parents: object, queue: "multiprocessing.Queue[tuple[bytes, bool]]") -> None:
    queue.put((storage.read_bytes(uri), gcs.client() is parents))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own_client() -> None:
    uri, client = f"{ROOT}/x", gcs.client()
    storage.publish(uri, b"abc")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_read_in_child, args=(uri, client, queue)) for _ in range(3)]
    for child in children:
        child.start()
    assert [queue.get(timeout=30) for _ in children] == [(b"abc", False)] * 3
    for child in children:
        child.join(timeout=30)
        assert child.exitcode == 0
    assert storage.read_bytes(uri) == b"abc"
    assert gcs.client() is client
    queue.close()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(**_: object) -> None:
        raise DefaultCredentialsError("none here")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(google.auth, "default", default)
    with pytest.raises(StorageError, match="no credentials for gs://: none here") as caught:
        storage.read_bytes("gs://bucket/x")
    assert "gcloud auth application-default login" in caught.value.todo


def test_a_page_has_the_type_that_a_browser_shows() -> None:
    storage.replace(f"{ROOT}/a/report.html", b"x")
    storage.publish(f"{ROOT}/model.tar", b"x")
    bucket = gcs.client().bucket("bucket-1")
    assert bucket.get_blob("a/report.html").content_type == "text/html; charset=utf-8"
    assert bucket.get_blob("model.tar").content_type == "application/octet-stream"
