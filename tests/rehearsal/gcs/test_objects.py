"""Objects as files: what is on disk, what a server finds there, and what uploads leave."""

import stat
from pathlib import Path

import pytest

from rehearsal.errors import StorageError
from rehearsal.gcs.objects import Objects, Preconditions

BUCKET = "bucket-1"


def files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def make(root: Path) -> Objects:
    objects = Objects(root)
    objects.create_bucket(BUCKET, {})
    return objects


def test_objects_are_files_of_their_names_for_reading(tmp_path: Path) -> None:
    objects = make(tmp_path)
    for name in ("a/b/c", "top", "dir/", "x//y", "../up", "n" * 300):
        objects.write(BUCKET, name, [name.encode()])
    assert files(tmp_path / BUCKET) == {"a/b/c": b"a/b/c", "top": b"top"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()} == {0o444}
    # An object where a folder is, and one below an object.
    for name in ("a", "top/below"):
        objects.write(BUCKET, name, [name.encode()])
        with objects.open(BUCKET, name)[1] as file:
            assert file.read() == name.encode()
    objects.write(BUCKET, "a/b/c", [b"new"])
    assert files(tmp_path / BUCKET) == {"a/b/c": b"new", "top": b"top"}
    objects.delete(BUCKET, "a/b/c")
    # Nothing is in its way any more.
    objects.write(BUCKET, "a", [b"replaced"])
    assert files(tmp_path / BUCKET) == {"a": b"replaced", "top": b"top"}
    for record in objects.rows(BUCKET, "", "", 100):
        objects.delete(BUCKET, record.name)
    assert files(tmp_path) == {} and list((tmp_path / BUCKET).iterdir()) == []
    assert not (tmp_path.parent / "up").exists()


def test_a_server_adopts_the_files_that_are_there(tmp_path: Path) -> None:
    first = make(tmp_path).write(BUCKET, "a/x", [b"abc"])
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "1.jpg").write_bytes(b"cat")
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.write_bytes(b"of the user")
    mode = outside.stat().st_mode
    (tmp_path / "photos" / "link").symlink_to(outside)
    # What an upload left behind is no object.
    (tmp_path / ".gcs" / "uploads" / "half").write_bytes(b"half")
    objects = Objects(tmp_path)
    again, cat = objects.get(BUCKET, "a/x"), objects.get("photos", "cats/1.jpg")
    assert (again.generation, again.size, again.crc32c, again.md5) == (first.generation, 3, first.crc32c, first.md5)
    assert (cat.size, stat.S_IMODE(cat.path.stat().st_mode)) == (3, 0o444)
    assert objects.write(BUCKET, "a/x", [b"new"]).generation > first.generation
    assert objects.find("photos", "link") is None
    assert outside.stat().st_mode == mode
    (tmp_path / "photos" / "link").unlink()
    objects.delete("photos", "cats/1.jpg")
    assert files(tmp_path) == {f"{BUCKET}/a/x": b"new"}


def test_what_is_refused_or_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    objects = make(tmp_path)
    objects.write(BUCKET, "x", [b"kept"])
    with pytest.raises(StorageError):
        objects.write(BUCKET, "x", [b"refused"], {}, Preconditions(generation_match=0))
    with pytest.raises(ZeroDivisionError):
        objects.write(BUCKET, "y", (b"%d" % (1 // n) for n in (1, 0)))
    assert files(tmp_path) == {f"{BUCKET}/x": b"kept"}
