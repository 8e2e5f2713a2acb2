"""The documents: strict, versioned, and sure of their files."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    FileEntry,
    ProfileChoice,
    ProfileReport,
    ShardManifest,
    find_damage,
)
from contracts.errors import DataError
from rehearsal.gcs import BucketServer

GOLDEN = Path(__file__).parents[1] / "golden"


def report(**changes: Any) -> ProfileReport:
    values: dict[str, Any] = {
        "fingerprint": "f",
        "model_fingerprint": "m",
        "shards_fingerprint": "s",
        "hardware": {},
        "torch_version": "2",
        "ranks": 2,
        "threads_per_rank": 1,
        "global_batch_size": 64,
        "points": [],
        "choice": ProfileChoice(slot_size=32, num_workers=0, reason="r"),
    }
    return ProfileReport(**{**values, **changes})


def test_a_document_comes_back_and_equal_documents_are_equal_bytes() -> None:
    document = report()
    assert ProfileReport.parse(document.to_json(), where="x") == document
    assert report().to_json() == document.to_json()
    assert report(ranks=3).sha256 != document.sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format_version=99), "format version 99"),
        (lambda v: v.update(format_version=0), "format version 0"),
        (lambda v: v.update(kind="shards"), "'shards' document"),
        (lambda v: v.pop("choice"), "damaged at choice"),
        (lambda v: v.update(surprise=1), "damaged at surprise"),
    ],
)
def test_a_foreign_or_damaged_document_and_one_of_another_version_are_refused(change: Any, message: str) -> None:
    values = json.loads(report().to_json())
    change(values)
    with pytest.raises(DataError, match=message):
        ProfileReport.parse(json.dumps(values).encode(), where="x")


def test_what_has_no_manifest_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no manifest\.json"):
        ShardManifest.load(storage.normalise(tmp_path))


def test_damage_is_found(tmp_path: Path) -> None:
    folder = storage.normalise(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"content")
    entries = [FileEntry.of(folder, "a/x")]
    assert find_damage(folder, entries) is None
    (tmp_path / "a/x").write_bytes(b"Content")
    assert "crc32c" in str(find_damage(folder, entries))
    assert find_damage(folder, entries, checksums=False) is None
    (tmp_path / "a/x").write_bytes(b"conten")
    assert "6 bytes" in str(find_damage(folder, entries, checksums=False))
    (tmp_path / "a/x").unlink()
    assert "missing" in str(find_damage(folder, entries))


def publish_many(folder: str, count: int) -> list[FileEntry]:
    """Publish small files below a folder, a few of them in a folder of their own, and describe them."""
    entries = []
    for number in range(count):
        name = f"part/{number:04d}" if number < 25 else f"{number:04d}"
        content = b"%d" % number
        storage.publish(storage.join(folder, *name.split("/")), content)
        entries.append(FileEntry(name=name, bytes=len(content), crc32c=storage.crc32c(content)))
    return entries


def test_many_files_of_a_bucket_are_compared_by_listings(bucket_server: BucketServer) -> None:
    """Two folders of the document and a sibling: three listings, whatever their number of files."""
    root = "gs://bucket-1/shard"
    older, newer = storage.join(root, "0123456789abcdef"), storage.join(root, "fedcba9876543210")
    moved = [entry.model_copy(update={"folder": "0123456789abcdef"}) for entry in publish_many(older, 60)]
    entries = [*publish_many(newer, 60), *moved]
    # What lies beside them is neither listed nor in the way.
    storage.publish(storage.join(newer, ".work", "references-00000"), b"x")
    bucket_server.access_log.clear()
    assert find_damage(newer, entries) is None
    assert [entry.operation for entry in bucket_server.access_log.entries()] == ["objects.list"] * 4
    storage.replace(storage.join(older, "0030"), b"xx")
    assert find_damage(newer, entries) == (
        f"../0123456789abcdef/0030 has crc32c {storage.crc32c(b'xx')}, its manifest says {storage.crc32c(b'30')}"
    )
    assert find_damage(newer, entries, checksums=False) is None
    storage.replace(storage.join(newer, "0040"), b"longer")
    assert find_damage(newer, entries) == "0040 has 6 bytes, its manifest says 2"
    storage.delete(storage.join(newer, "part", "0007"))
    assert find_damage(newer, entries) == "part/0007 is missing"
    bucket_server.access_log.clear()
    assert find_damage(newer, entries[100:103]) is None
    assert len(bucket_server.access_log.entries()) == 3, "a request for each of a few files"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc/passwd"},
        {"name": "/etc/passwd"},
        {"name": "a\0b"},
        {"crc32c": "/any/place"},
        {"bytes": -1},
    ],
)
def test_an_entry_names_a_file_below_its_folder(change: dict[str, Any]) -> None:
    """Names and checksums become paths of caches."""
    FileEntry.model_validate({"name": "a folder/..x", "bytes": 0, "crc32c": "0123abcd"})
    with pytest.raises(ValidationError):
        FileEntry.model_validate({"name": "x", "bytes": 0, "crc32c": "00000000", **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["splits"].pop("train"), "damaged at splits: .*no split train"),
        (lambda v: v["shards"]["samples"].__setitem__(0, -1), r"damaged at shards\.samples\.0"),
        (lambda v: v["shards"]["name"].__setitem__(0, "../x"), r"damaged at shards\.name\.0"),
        (lambda v: v["shards"]["num_shards"].update(test=0), "damaged at shards: .*the splits have other shards"),
    ],
)
def test_a_damaged_manifest_of_shards_is_named(small_shards: str, change: Any, words: str) -> None:
    values = json.loads(storage.read_bytes(storage.join(small_shards, MANIFEST_NAME)))
    change(values)
    with pytest.raises(DataError, match=words):
        ShardManifest.parse(json.dumps(values).encode(), where="x")
