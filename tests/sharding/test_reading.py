"""Reading ahead, from a folder and a bucket: in order, one request each, with checksums compared."""

import gc
import os
from pathlib import Path

import google_crc32c
import pytest

from contracts import storage
from contracts.errors import TryAgain
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from sharding import reading
from sharding.reading import FileReader
from sharding.reference import SourceFile

# Google's client drops the connection of a streamed answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NAMES = [f"a/{number:03d}.png" for number in range(12)] + ["a/50%.png", "b/what? a#1.png", "b/{0}.png", "b/ü.png"]


def test_all_in_order_with_one_request_each_and_checksums(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        storage.publish(f"gs://bucket-1/raw/{name}", name.encode() * 100)
    files = [
        SourceFile(info.name.encode(), info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    bucket_server.access_log.clear()
    monkeypatch.setattr(reading, "BYTES_IN_FLIGHT", 4000)
    reader = FileReader("gs://bucket-1/raw")
    assert list(reader.read_ahead(files[::-1])) == [one.path * 100 for one in files[::-1]]
    requests = bucket_server.access_log.entries(operation="objects.media")
    # A name that gcsfs cannot ask for is read by the other client.
    assert sorted(request.object for request in requests) == sorted(f"raw/{name}" for name in NAMES)
    bucket_server.faults.set(
        Rule(object="raw/a/003.png", status=503, limit=1),
        Rule(object="raw/a/005.png", corrupt_at=7, limit=1),
        Rule(object="raw/a/007.png", truncate_at=9, quietly=True, limit=1),
        Rule(object="raw/a/009.png", reset=True, limit=1),
    )
    assert list(reader.read_ahead(files)) == [one.path * 100 for one in files]
    assert bucket_server.faults.hits() == [1, 1, 1, 1]
    gc.collect()


def test_of_equal_content_the_time_does_not_matter(tmp_path: Path) -> None:
    path, content = tmp_path / "file", b"some content"
    path.write_bytes(content)
    listed = SourceFile(b"file", len(content), google_crc32c.value(content))
    os.utime(path, ns=(1, 1))
    reader = FileReader(storage.normalise(tmp_path), by_content=True)
    assert reader.read(listed) == content
    path.write_bytes(b"x" * len(content))
    with pytest.raises(TryAgain, match="changed while"):
        reader.read(listed)


def test_a_large_file_that_is_no_image_is_known_by_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGE_BYTES", 1000)
    contents = {"0.mp4": b"\0\0\0\x18ftypmp42" + bytes(2000), "1.bmp": b"BM" + bytes(2000)}
    files = []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        files.append(SourceFile(name.encode(), len(content), (tmp_path / name).stat().st_mtime_ns))
    found = list(FileReader(storage.normalise(tmp_path)).read_ahead(files))
    assert found == [contents["0.mp4"][: reading.HEAD_BYTES], contents["1.bmp"]]
