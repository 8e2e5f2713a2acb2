"""One door to local files and memory."""

import os
from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import StorageError


@pytest.fixture(params=["file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return storage.normalise(tmp_path / "r") if request.param == "file" else f"memory://{tmp_path.name}"


def test_publish_is_create_only(root: str) -> None:
    uri = storage.join(root, "a", "b c.json")
    storage.publish(uri, b"one")
    storage.publish(uri, b"one")
    with pytest.raises(storage.AlreadyPublished):
        storage.publish(uri, b"two")
    assert storage.read_bytes(uri) == b"one"
    assert storage.size(uri) == 3
    assert storage.list_names(storage.join(root, "a")) == ["b c.json"]
    assert storage.crc32c_of(uri) == storage.crc32c(b"one")


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


def test_the_crc_is_castagnoli() -> None:
    # The check value of CRC-32C (iSCSI), RFC 3720, B.4: 32 bytes of zeros, without the final byte swap.
    assert storage.crc32c(b"123456789") == "e3069283"
    assert storage.crc32c(bytes(32)) == "8a9136aa"


def test_a_path_becomes_a_uri_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = storage.normalise("a b/ü%.png")
    assert uri.isascii()
    assert storage.local_path(uri) == tmp_path / "a b/ü%.png"
    assert storage.display(uri) == "a b/ü%.png"
    assert storage.normalise("x/../y/") == storage.normalise("y")
    # A percent-encoded letter is the letter: this is how a name travels through kfp.local unchanged.
    assert storage.local_path("file:///tmp/%70ython3") == Path("/tmp/python3")


@pytest.mark.parametrize("uri", ["gs://bucket/x", "s3://bucket/x", "http://host/x"])
def test_other_schemes_are_refused(uri: str) -> None:
    with pytest.raises(StorageError) as caught:
        storage.normalise(uri)
    assert caught.value.exit_code == 2
    assert uri in caught.value.given
