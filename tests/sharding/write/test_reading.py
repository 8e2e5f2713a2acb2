"""Reading ahead, from a folder and a bucket: in order, pinned, checked, within bounds, ending when the writer does."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.errors import StorageError, TryAgain
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from sharding.sources import Reference
from sharding.write import reading
from sharding.write.reading import cut, read_ahead

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


def read(references: list[Reference], **options: int) -> list[bytes]:
    found = list(read_ahead("gs://bucket-1/raw", references, threads=8, **options))
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
    generation = listed[1].generation
    with pytest.raises(TryAgain, match=rf"raw/a/001\.png vanished or was replaced .*generation {generation}"):
        read(listed)


def test_no_permission_is_said(listed: list[Reference], bucket_server: BucketServer) -> None:
    bucket_server.faults.set(Rule(object="raw/a/002.png", status=403))
    # Readers that other tests left to the collector are theirs.
    before = set(threading.enumerate())
    with pytest.raises(StorageError, match="no permission"):
        read(listed)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("read")]


def test_files_and_objects_of_one_manifest(listed: list[Reference], folder: Path) -> None:
    mixed = [Reference(b"gs://bucket-1/raw/" + one.path, *one[1:]) for one in listed]
    mixed.insert(3, list_files(folder)[0])
    found = dict(read_ahead(storage.normalise(folder), mixed, threads=8))
    assert list(found) == mixed
    assert found[mixed[3]] == b""
    assert found[mixed[4]] == listed[3].path * 100


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
        Reference(info.name.encode(), 0, 0, info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    bucket_server.access_log.clear()
    assert read(remote) == [video[: reading.HEAD_BYTES], picture]
    requests = bucket_server.access_log.entries(operation="objects.media", object="raw/0.mp4")
    assert sum(request.bytes_out for request in requests) == reading.HEAD_BYTES
    for threads in (0, 2):
        found = read_ahead(storage.normalise(tmp_path), list_files(tmp_path), threads=threads)
        assert [content for _, content in found] == [video[: reading.HEAD_BYTES], picture]


# --- files of this machine --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "files"
    place.mkdir()
    for number in range(40):
        (place / f"{number:02d}").write_bytes(bytes([number]) * number * 37)
    return place


def list_files(folder: Path) -> list[Reference]:
    return [
        Reference(path.name.encode(), 0, 0, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    ]


@pytest.mark.parametrize("threads", [0, 5])
@pytest.mark.parametrize("bound", [1, 1 << 20])
def test_everything_once_in_order(folder: Path, threads: int, bound: int) -> None:
    references = list_files(folder)[::-1]
    found = list(read_ahead(storage.normalise(folder), references, threads=threads, bytes_in_flight=bound))
    assert found == [(one, (folder / one.path.decode()).read_bytes()) for one in references]


@pytest.mark.parametrize("threads", [0, 3])
def test_the_first_error_comes_in_its_place_and_ends_the_reading(folder: Path, threads: int) -> None:
    references = list_files(folder)
    (folder / "20").write_bytes(b"changed")
    before = threading.active_count()
    taken = []
    with pytest.raises(TryAgain, match=r"20 in .* changed while"):
        for one, _ in read_ahead(storage.normalise(folder), references, threads=threads, bytes_in_flight=2000):
            taken.append(one)
    # A batch that holds the file gives nothing.
    assert taken == references[: len(taken)] and 15 <= len(taken) <= 20
    assert threading.active_count() <= before


def test_a_writer_that_gives_up_ends_the_reading(folder: Path) -> None:
    before = threading.active_count()
    reading_on = read_ahead(storage.normalise(folder), list_files(folder), threads=3)
    next(reading_on)
    reading_on.close()
    assert threading.active_count() <= before


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(1, 20_000))
def test_batches_are_bounded_and_whole(sizes: list[int], bound: int) -> None:
    references = [Reference(b"%d" % number, 0, 0, size, 0) for number, size in enumerate(sizes)]
    batches = list(cut(references, most_bytes=bound, most_files=reading.BATCH_FILES))
    assert [one for batch in batches for one in batch] == references
    assert all(len(batch) == 1 or sum(one.size for one in batch) <= bound for batch in batches)


def test_files_are_announced_before_they_are_read_and_not_all_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ANNOUNCED_FILES", 3)
    announced: list[bytes] = []
    monkeypatch.setattr(reading, "announce_file", lambda path: announced.append(os.path.basename(path)))  # noqa: PTH119
    references = list_files(folder)
    for number, (one, _) in enumerate(read_ahead(storage.normalise(folder), references, threads=0)):
        assert one.path in announced and len(announced) <= number + 4


def test_announcing_a_file_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    reading.announce_file(bytes(tmp_path / "missing"))
    os.mkfifo(tmp_path / "pipe")
    reading.announce_file(bytes(tmp_path / "pipe"))
