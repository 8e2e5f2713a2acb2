"""The server as a process: its command, its tree of files, kills and restarts, its log."""

import base64
import contextlib
import gc
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
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


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def serve(processes: list[subprocess.Popen[str]], root: Path, *options: str) -> str:
    arguments = [sys.executable, "-m", "rehearsal.gcs", "--root", str(root), "--bucket", "bucket-1", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_command_serves_and_ends(command: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    rules, log = tmp_path / "rules.json", tmp_path / "log.jsonl"
    rules.write_text('[{"operation": "objects.media", "status": 503, "limit": 1}]')
    endpoint = serve(command, tmp_path / "root", "--rules", str(rules), "--access-log", str(log))
    assert endpoint.startswith("http://127.0.0.1:")
    with bucket_of(endpoint) as bucket:
        bucket.blob("a/x").upload_from_string(b"abc")
        assert bucket.blob("a/x").download_as_bytes() == b"abc"
    command[0].send_signal(signal.SIGTERM)
    assert command[0].wait(timeout=20) == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    shown = [(entry["method"], entry["operation"], entry["object"], entry["status"]) for entry in entries]
    assert shown == [
        ("POST", "uploads", "a/x", 200),
        ("GET", "objects.media", "a/x", 503),
        ("GET", "objects.media", "a/x", 200),
    ]
    assert entries[2]["bytes_out"] == 3
    assert entries[0]["bytes_in"] > 3


def test_objects_survive_a_restart(tmp_path: Path) -> None:
    with BucketServer(tmp_path, buckets=["bucket-1"]) as server, bucket_of(server.endpoint) as bucket:
        blob = bucket.blob("a/x")
        blob.metadata = {"k": "v"}
        blob.upload_from_string(b"abc", content_type="text/plain")
        generation = blob.generation
    with BucketServer(tmp_path, buckets=["bucket-1"]) as server, bucket_of(server.endpoint) as bucket:
        found = bucket.get_blob("a/x")
        assert found is not None
        assert (found.generation, found.metadata, found.content_type) == (generation, {"k": "v"}, "text/plain")
        assert found.download_as_bytes() == b"abc"
        found.upload_from_string(b"new")
        assert found.generation > generation


def test_the_tree_shows_the_objects(tmp_path: Path) -> None:
    def tree() -> dict[str, bytes]:
        files = (path for path in (tmp_path / "bucket-1").rglob("*") if path.is_file())
        return {path.relative_to(tmp_path / "bucket-1").as_posix(): path.read_bytes() for path in files}

    with BucketServer(tmp_path, buckets=["bucket-1"]) as server, bucket_of(server.endpoint) as bucket:
        for name in ("a/b/c", "top", "dir/", "x//y", "../up", "n" * 300):
            bucket.blob(name).upload_from_string(name.encode())
        assert tree() == {"a/b/c": b"a/b/c", "top": b"top"}
        bucket.blob("a").upload_from_string(b"an object where a folder is")
        assert tree() == {"a/b/c": b"a/b/c", "top": b"top"}
        assert bucket.blob("a").download_as_bytes() == b"an object where a folder is"
        bucket.blob("a/b/c").upload_from_string(b"new")
        bucket.move_blob(bucket.blob("top"), "t/o/p")
        assert tree() == {"a/b/c": b"new", "t/o/p": b"top"}
        bucket.blob("a/b/c").delete()
        bucket.blob("t/o/p").delete()
        assert tree() == {}
        assert sorted(path.name for path in (tmp_path / "bucket-1").iterdir()) == []
    assert not (tmp_path.parent / "up").exists()


def test_a_folder_of_files_is_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "1.jpg").write_bytes(b"cat")
    with BucketServer(tmp_path) as server, bucket_of(server.endpoint, "photos") as bucket:
        found = bucket.get_blob("cats/1.jpg")
        assert found is not None
        assert found.download_as_bytes() == b"cat"
        assert found.crc32c == base64.b64encode(google_crc32c.value(b"cat").to_bytes(4)).decode()
        found.delete()
    with BucketServer(tmp_path) as server, bucket_of(server.endpoint, "photos") as bucket:
        assert list(bucket.list_blobs()) == []


def test_an_open_download_outlives_its_object(bucket_server: BucketServer) -> None:
    url = f"{bucket_server.endpoint}/storage/v1/b/bucket-1/o/x?alt=media"
    with bucket_of(bucket_server.endpoint) as bucket:
        bucket.blob("x").upload_from_string(CONTENT * 8)
        answer = bucket.client._http.get(url, stream=True, timeout=20)
        pieces = answer.iter_content(1000)
        read = len(next(pieces))
        bucket.blob("x").upload_from_string(b"new")
        assert read + sum(len(piece) for piece in pieces) == len(CONTENT) * 8


def test_one_server_a_root(tmp_path: Path) -> None:
    with BucketServer(tmp_path), pytest.raises(RuntimeError, match="another server"):
        BucketServer(tmp_path)


def test_a_kill_leaves_whole_objects(command: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """kill -9 while eight threads write: what is there afterwards is whole, and what was acknowledged is there."""
    root, acknowledged, stop = tmp_path / "root", set[str](), threading.Event()
    endpoint = serve(command, root)

    def write(thread: int) -> None:
        with bucket_of(endpoint) as bucket:
            write_to(bucket, thread)

    def write_to(bucket: storage.Bucket, thread: int) -> None:
        for number in range(1000):
            if stop.is_set():
                return
            name = f"{thread}/{number % 20}"
            content = f"{thread} {number} ".encode() * (1 + number % 7 * 20_000)
            try:
                bucket.blob(name, chunk_size=256 << 10).upload_from_string(content, retry=None, timeout=20)
            except Exception:  # noqa: BLE001 - the server was killed, in whatever state the client was
                return
            acknowledged.add(name)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(acknowledged) < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    command[0].kill()
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    assert len(acknowledged) >= 60

    with BucketServer(root) as server, bucket_of(server.endpoint) as bucket:
        found = {blob.name: blob for blob in bucket.list_blobs()}
        assert acknowledged <= set(found)
        for name, blob in found.items():
            content = blob.download_as_bytes()
            assert blob.size == len(content)
            assert blob.crc32c == base64.b64encode(google_crc32c.value(content).to_bytes(4)).decode()
            assert (root / "bucket-1" / name).read_bytes() == content
        state = root / ".gcs"
        assert len(list((state / "content").iterdir())) == len(found)
        assert not list(state.glob("link-*"))
