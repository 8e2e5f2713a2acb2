"""The objects on disk when the server dies between two steps, wherever that is."""

import os
from pathlib import Path
from typing import Any

import pytest

from rehearsal.gcs import BucketService
from rehearsal.gcs.content import ContentFolder, read_in_turn
from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import NOTHING, Preconditions
from rehearsal.gcs.resources import bucket_resource

BUCKET = "bucket-1"


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs."""


def write(objects: Objects, name: str, content: bytes) -> None:
    objects.commit(BUCKET, name, objects.contents.write([content]), {})


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in (root / BUCKET).rglob("*") if path.is_file())
    return {path.relative_to(root / BUCKET).as_posix(): path.read_bytes() for path in found}


def rows(objects: Objects) -> dict[str, bytes]:
    found = objects.rows(BUCKET, "", "", 100)
    return {row.name: b"".join(read_in_turn([objects.contents.open(row.content_id)])) for row in found}


# What each request does on disk, in its order.
@pytest.mark.parametrize(
    ("step", "action", "expected"),
    [
        ("show", "create", {"a/x": b"old", "new": b"new"}),
        ("show", "overwrite", {"a/x": b"new"}),
        ("remove", "overwrite", {"a/x": b"new"}),
        ("hide", "delete", {}),
        ("remove", "delete", {}),
    ],
)
def test_a_kill_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, action: str, expected: dict[str, bytes]
) -> None:
    objects = Objects(tmp_path)
    objects.create_bucket(BUCKET, {})
    write(objects, "a/x", b"old")
    actions: dict[str, Any] = {
        "create": lambda: write(objects, "new", b"new"),
        "overwrite": lambda: write(objects, "a/x", b"new"),
        "delete": lambda: objects.delete(BUCKET, "a/x", None, NOTHING),
    }
    with monkeypatch.context() as patch:

        def kill(*_: object) -> None:
            raise Killed

        patch.setattr(ContentFolder, step, kill)
        with pytest.raises(Killed):
            actions[action]()
        objects.close()

    objects = Objects(tmp_path)
    assert rows(objects) == expected
    assert files(tmp_path) == expected
    assert len(list((tmp_path / ".gcs" / "content").iterdir())) == len(expected)
    objects.close()


def test_bytes_without_an_object_are_swept(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    objects.create_bucket(BUCKET, {})
    write(objects, "x", b"kept")
    objects.contents.write([b"an upload that was never committed"])
    half = objects.contents.writer()
    half.write(b"half")
    half.finish()
    objects.close()
    objects = Objects(tmp_path)
    assert rows(objects) == {"x": b"kept"}
    assert len(list((tmp_path / ".gcs" / "content").iterdir())) == 1
    objects.close()


def test_a_refused_upload_leaves_nothing(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    objects.create_bucket(BUCKET, {})
    write(objects, "x", b"kept")
    content = objects.contents.write([b"refused"])
    with pytest.raises(ApiError):
        objects.commit(BUCKET, "x", content, {}, Preconditions(generation_match=0))
    assert len(list((tmp_path / ".gcs" / "content").iterdir())) == 1
    objects.close()


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    (tmp_path / BUCKET).mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / BUCKET) + b"/\xff.jpg")).write_bytes(b"x")
    with pytest.raises(RuntimeError, match="not UTF-8"):
        Objects(tmp_path)


def test_buckets_are_where_they_were_made_and_those_of_files_where_the_service_says(tmp_path: Path) -> None:
    (tmp_path / "of-files").mkdir()
    (tmp_path / "of-files" / "x").write_text("x")
    service = BucketService(tmp_path, buckets=["of-files", "new"], location="us-east4")
    service.objects.create_bucket("by-a-client", {"location": "eur4"})
    service.objects.create_bucket("without", {})
    found = {bucket.name: bucket_resource(bucket, "") for bucket in service.objects.buckets()}
    service.close()
    assert {name: (one["location"], one["locationType"]) for name, one in found.items()} == {
        "of-files": ("US-EAST4", "region"),
        "new": ("US-EAST4", "region"),
        "by-a-client": ("EUR4", "dual-region"),
        "without": ("US", "multi-region"),
    }
