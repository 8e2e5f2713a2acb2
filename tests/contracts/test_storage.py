"""One door to local files and buckets."""

import hashlib
import os
from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import TryAgain


@pytest.fixture(params=["file", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "gs":
        request.getfixturevalue("bucket_server")
        return f"gs://bucket-1/{tmp_path.name}"
    return storage.normalise(tmp_path / "r")


def test_publish_is_create_only(root: str) -> None:
    uri = storage.join(root, "a", "b c.json")
    storage.publish(uri, b"one")
    storage.publish(uri, b"one")
    with pytest.raises(storage.AlreadyPublished):
        storage.publish(uri, b"two")
    assert storage.read_bytes(uri) == b"one"
    assert storage.info(uri).size == 3
    assert storage.list_names(storage.join(root, "a")) == ["b c.json"]
    assert storage.crc32c_of(uri) == storage.crc32c(b"one")


def test_a_file_is_published_once(root: str, tmp_path: Path) -> None:
    uri = storage.join(root, "shards", "00.tar")
    for content in (b"one", b"one", b"two"):
        file = tmp_path / "f"
        file.write_bytes(content)
        if content == b"one":
            storage.publish_file(file, uri)
        else:
            with pytest.raises(storage.AlreadyPublished):
                storage.publish_file(file, uri)
        assert not file.exists()
    assert storage.read_bytes(uri) == b"one"


def test_objects_are_listed_below_a_folder_by_name(root: str) -> None:
    names = ["a-b", "a/c", "a/b/d e", "a0", "ü"]
    for name in names:
        storage.publish(storage.join(root, "t", *name.split("/")), name.encode())
    storage.publish(storage.join(root, "t2"), b"not below")
    found = list(storage.list_objects(storage.join(root, "t")))
    assert [info.name for info in found] == sorted(names)
    assert [info.size for info in found] == [len(name.encode()) for name in sorted(names)]
    for info in found:
        content = info.name.encode()
        assert info.crc32c in (None, storage.crc32c(content))
        assert info.md5 in (None, hashlib.md5(content).hexdigest())
    assert [info.name for info in storage.list_objects(storage.join(root, "t"), recursive=False)] == [
        info.name for info in found if "/" not in info.name
    ]
    assert list(storage.list_objects(storage.join(root, "missing"))) == []


def test_parts_are_read(root: str) -> None:
    uri = storage.join(root, "x")
    storage.publish(uri, b"0123456789")
    assert storage.read_range(uri, 2, 3) == b"234"
    assert storage.read_range(uri, 8, 30) == b"89"
    assert storage.read_range(uri, 10, 3) == b""
    assert storage.read_range(uri, 0, 0) == b""
    with storage.open_read(uri) as stream:
        assert stream.read(4) == b"0123"
        stream.seek(-2, os.SEEK_END)
        assert stream.read() == b"89"
        stream.seek(1)
        assert stream.read(2) == b"12"
    for read in (storage.read_bytes, storage.info, storage.crc32c_of, storage.open_read):
        with pytest.raises(FileNotFoundError):
            read(storage.join(root, "missing"))
    with pytest.raises(FileNotFoundError):
        storage.read_range(storage.join(root, "missing"), 0, 1)


def test_many_are_read_at_once(root: str) -> None:
    contents = {f"a/{number} ü#1": b"%d" % number for number in range(30)}
    for name, content in contents.items():
        storage.publish(storage.join(root, *name.split("/")), content)
    wanted = [
        storage.ReadRequest(
            storage.join(root, *info.name.split("/")), info.generation, storage.crc32c(contents[info.name])
        )
        for info in storage.list_objects(root)
    ]
    wanted.insert(3, storage.ReadRequest(storage.join(root, "missing")))
    found = storage.read_many(wanted)
    assert isinstance(found.pop(3), FileNotFoundError)
    assert found == [contents[name] for name in sorted(contents)]
    with pytest.raises(TryAgain):
        storage.read_many([storage.ReadRequest(wanted[0].uri, crc32c="00000000")])
    assert storage.read_many([]) == []


def test_replace_and_delete(root: str) -> None:
    uri = storage.join(root, "x")
    storage.replace(uri, b"1")
    storage.replace(uri, b"2")
    assert storage.read_bytes(uri) == b"2"
    storage.delete(uri)
    storage.delete(uri)
    assert not storage.exists(uri)
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(uri)


def test_a_tree_goes_and_nothing_else(root: str) -> None:
    for name in ("one/manifest.json", "one/deep/data", "two/manifest.json"):
        storage.publish(storage.join(root, *name.split("/")), b"x")
    storage.delete_tree(storage.join(root, "one"), manifest_name="manifest.json")
    assert storage.list_names(root) == ["two"]
    storage.delete_tree(storage.join(root, "missing"), manifest_name="manifest.json")


def test_manifests_are_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("manifest.json", "data", "deep/manifest.json"):
        storage.publish(storage.join(storage.normalise(tmp_path / "t"), *name.split("/")), b"x")

    def killed(path: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        storage.delete_tree(storage.normalise(tmp_path / "t"), manifest_name="manifest.json")
    assert sorted(path.name for path in (tmp_path / "t").rglob("*") if path.is_file()) == ["data"]


def test_an_interrupted_write_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = storage.normalise(tmp_path / "x")
    storage.replace(uri, b"old")

    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        storage.replace(uri, b"new")
    assert storage.read_bytes(uri) == b"old"


def test_a_path_becomes_a_uri_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = storage.normalise("a b/ü%.png")
    assert uri.isascii()
    assert storage.local_path(uri) == tmp_path / "a b/ü%.png"
    assert storage.display(uri) == "a b/ü%.png"
    assert storage.normalise("x/../y/") == storage.normalise("y")
    # A percent-encoded letter is the letter: this is how a name travels through an argument unchanged.
    assert storage.local_path("file:///tmp/%70ython3") == Path("/tmp/python3")
