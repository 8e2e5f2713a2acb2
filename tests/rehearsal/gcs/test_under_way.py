"""Uploads under way: what is abandoned does not pile up."""

import stat
from pathlib import Path

import requests

from rehearsal.gcs import BucketServer
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.uploads import MAX_UNDER_WAY

LIMIT_S = 30


def write(objects: Objects, name: str, content: bytes) -> None:
    objects.commit("bucket-1", name, objects.contents.write([content]), {})


def test_abandoned_uploads_do_not_pile_up(bucket_server: BucketServer) -> None:
    url = f"{bucket_server.endpoint}/upload/storage/v1/b/bucket-1/o?uploadType=resumable&name=x"
    with requests.Session() as session:
        places = [session.post(url, timeout=LIMIT_S).headers["Location"] for _ in range(MAX_UNDER_WAY + 10)]
        answers = [session.put(places[n], data=b"bytes", timeout=LIMIT_S).status_code for n in (0, 9, 10, -1)]
        assert answers == [404, 404, 200, 200]
    assert len(list((bucket_server.root / ".gcs" / "content").iterdir())) <= MAX_UNDER_WAY


def test_the_visible_tree_is_for_reading(tmp_path: Path) -> None:
    (tmp_path / "bucket-1").mkdir()
    (tmp_path / "bucket-1" / "found").write_bytes(b"found")
    objects = Objects(tmp_path)
    write(objects, "folder/made", b"made")
    for name in ("found", "folder/made"):
        assert stat.S_IMODE((tmp_path / "bucket-1" / name).stat().st_mode) == 0o444
    objects.close()
