"""Reading ahead, from a folder and a bucket: in order, pinned, checked, within bounds, ending when the writer does."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from contracts import storage
from contracts.errors import StorageError, TryAgain
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from sharding import reading
from sharding.reading import FileReader
from sharding.reference import SourceFile

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NAMES = [f"a/{number:03d}.png" for number in range(40)] + ["a/50%.png", "b/what? a#1.png", "b/{0}.png", "b/ü.png"]


@pytest.fixture
def listed(bucket_server: BucketServer) -> Iterator[list[SourceFile]]:
    for name in NAMES:
        storage.publish(f"gs://bucket-1/raw/{name}", name.encode() * 100)
    bucket_server.access_log.clear()
    yield [
        SourceFile(info.name.encode(), info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    gc.collect()


def read(files: list[SourceFile]) -> list[bytes]:
    return list(FileReader("gs://bucket-1/raw").read_ahead(files))


def test_all_in_order_one_request_each(
    listed: list[SourceFile], bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BYTES_IN_FLIGHT", 4000)
    assert read(listed[::-1]) == [one.path * 100 for one in listed[::-1]]
    requests = bucket_server.access_log.entries(operation="objects.media")
    # A name that gcsfs cannot ask for is read by the other client.
    assert sorted(request.object for request in requests) == sorted(f"raw/{name}" for name in NAMES)


def test_faults_are_survived_and_checksums_compared(listed: list[SourceFile], bucket_server: BucketServer) -> None:
    bucket_server.faults.set(
        Rule(object="raw/a/003.png", status=503, limit=1),
        Rule(object="raw/a/005.png", corrupt_at=7, limit=1),
        Rule(object="raw/a/007.png", truncate_at=9, quietly=True, limit=1),
        Rule(object="raw/a/009.png", reset=True, limit=1),
    )
    assert read(listed) == [one.path * 100 for one in listed]
    assert bucket_server.faults.hits() == [1, 1, 1, 1]


def test_another_generation_is_not_read(listed: list[SourceFile]) -> None:
    storage.replace("gs://bucket-1/raw/a/001.png", NAMES[1].encode() * 100)
    generation = listed[1].version
    with pytest.raises(TryAgain, match=rf"raw/a/001\.png vanished or was replaced .*generation {generation}"):
        read(listed)


def test_no_permission_is_said(listed: list[SourceFile], bucket_server: BucketServer) -> None:
    bucket_server.faults.set(Rule(object="raw/a/002.png", status=403))
    # Readers that other tests left to the collector are theirs.
    before = set(threading.enumerate())
    with pytest.raises(StorageError, match="no permission"):
        read(listed)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("read")]


def test_a_large_file_that_is_no_image_is_known_by_its_head(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LARGE_BYTES", 1000)
    video, picture = b"\0\0\0\x18ftypmp42" + bytes(2000), b"BM" + bytes(2000)
    storage.publish("gs://bucket-1/raw/0.mp4", video)
    storage.publish("gs://bucket-1/raw/1.bmp", picture)
    (tmp_path / "0.mp4").write_bytes(video)
    (tmp_path / "1.bmp").write_bytes(picture)
    remote = [
        SourceFile(info.name.encode(), info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    bucket_server.access_log.clear()
    assert read(remote) == [video[: reading.HEAD_BYTES], picture]
    requests = bucket_server.access_log.entries(operation="objects.media", object="raw/0.mp4")
    assert sum(request.bytes_out for request in requests) == reading.HEAD_BYTES
    found = FileReader(storage.normalise(tmp_path)).read_ahead(list_files(tmp_path))
    assert list(found) == [video[: reading.HEAD_BYTES], picture]


# --- files of this machine --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "files"
    place.mkdir()
    for number in range(40):
        (place / f"{number:02d}").write_bytes(bytes([number]) * number * 37)
    return place


def list_files(folder: Path) -> list[SourceFile]:
    return [
        SourceFile(path.name.encode(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    ]


def test_of_equal_content_the_time_does_not_matter(folder: Path) -> None:
    (one,) = list_files(folder)[7:8]
    by_content = one._replace(version=google_crc32c.value((folder / "07").read_bytes()))
    os.utime(folder / "07", ns=(1, 1))
    reader = FileReader(storage.normalise(folder), by_content=True)
    assert len(reader.read(by_content)) == one.size
    (folder / "07").write_bytes(b"x" * one.size)
    with pytest.raises(TryAgain, match="changed while"):
        reader.read(by_content)
