"""Uploads and copies under way: nobody waits for another's bytes, and what is abandoned does not pile up."""

import re
import socket
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import requests

from rehearsal.gcs import BucketServer
from rehearsal.gcs.content import Content, ContentFolder
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import NOTHING
from rehearsal.gcs.uploads import MAX_UNDER_WAY

LIMIT_S = 30


def write(objects: Objects, name: str, content: bytes) -> None:
    objects.commit("bucket-1", name, objects.contents.write([content]), {})


def test_composing_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(tmp_path)
    objects.create_bucket("bucket-1", {})
    for name in ("a", "b"):
        write(objects, name, name.encode())
    sources = [objects.get("bucket-1", name) for name in ("a", "b")]
    copying, go, written = threading.Event(), threading.Event(), ContentFolder.write

    def write_slowly(self: ContentFolder, pieces: Iterable[bytes]) -> Content:
        copying.set()
        assert go.wait(LIMIT_S)
        return written(self, pieces)

    monkeypatch.setattr(ContentFolder, "write", write_slowly)
    composing = threading.Thread(target=objects.compose, args=("bucket-1", "ab", sources, {}, NOTHING))
    composing.start()
    assert copying.wait(LIMIT_S)
    deleting = threading.Thread(target=objects.delete, args=("bucket-1", "a", None, NOTHING))
    deleting.start()
    deleting.join(LIMIT_S)
    assert not deleting.is_alive()
    go.set()
    composing.join(LIMIT_S)
    # The bytes are those of the generations that were named.
    assert (objects.get("bucket-1", "ab").size, objects.find("bucket-1", "a")) == (2, None)
    objects.close()


def test_parts_of_one_upload_come_at_the_same_time(bucket_server: BucketServer) -> None:
    url = bucket_server.endpoint + "/bucket-1/whole"
    text = requests.post(f"{url}?uploads", timeout=LIMIT_S).text
    upload_id = re.findall("<UploadId>(.*?)<", text)[0]
    port = int(bucket_server.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        target = f"PUT /bucket-1/whole?uploadId={upload_id}&partNumber=1 HTTP/1.1"
        slow.sendall(f"{target}\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\nsl".encode())
        # The first part waits for its last bytes.
        other = requests.put(f"{url}?uploadId={upload_id}&partNumber=2", data=b"fast", timeout=LIMIT_S)
        assert other.ok
        slow.sendall(b"ow")
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")


def test_abandoned_uploads_do_not_pile_up(bucket_server: BucketServer) -> None:
    url = f"{bucket_server.endpoint}/upload/storage/v1/b/bucket-1/o?uploadType=resumable&name=x"
    with requests.Session() as session:
        places = [session.post(url, timeout=LIMIT_S).headers["Location"] for _ in range(MAX_UNDER_WAY + 10)]
        answers = [session.put(places[n], data=b"bytes", timeout=LIMIT_S).status_code for n in (0, 9, 10, -1)]
        assert answers == [404, 404, 200, 200]
        for _ in range(MAX_UNDER_WAY + 10):
            session.post(f"{bucket_server.endpoint}/bucket-1/parts?uploads", timeout=LIMIT_S)
    assert len(list((bucket_server.root / ".gcs" / "content").iterdir())) <= MAX_UNDER_WAY
    assert len(bucket_server._xml_uploads._uploads) == MAX_UNDER_WAY


def test_the_visible_tree_is_for_reading(tmp_path: Path) -> None:
    (tmp_path / "bucket-1").mkdir()
    (tmp_path / "bucket-1" / "found").write_bytes(b"found")
    objects = Objects(tmp_path)
    write(objects, "folder/made", b"made")
    for name in ("found", "folder/made"):
        assert stat.S_IMODE((tmp_path / "bucket-1" / name).stat().st_mode) == 0o444
    objects.close()
