"""The packed table of shards: the same entries as a document would list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, ShardEntry, ShardManifest, SplitEntry
from contracts.artifacts.shard_table import TABLE_NAME, pack_table, parse_table, shard_columns
from contracts.errors import DataError


def make_entries(count: int) -> list[ShardEntry]:
    return [
        ShardEntry(
            name=f"train-{n:05d}.tar" if n % 3 else f"käfer/{n}.tar",
            bytes=2**33 + n,
            crc32c=f"{n * 7919 % 2**32:08x}",
            folder="" if n % 5 else "0123456789abcdef",
            split=("train", "test")[n * 2 // count],
            first=n * 10,
            samples=10,
            tombstones=n % 2,
            rows_crc32c=f"{n:08x}" if n != 1 else "",
        )
        for n in range(count)
    ]


def make_manifest(entries: list[ShardEntry], table: FileEntry | None = None) -> ShardManifest:
    split = SplitEntry(first=0, samples=10, source_bytes=1, samples_by_class=[10])
    return ShardManifest(
        fingerprint="0" * 16,
        format_version=2,
        format="webdataset",
        seed=0,
        classes=["one"],
        splits={"train": split, "validation": split, "test": split},
        shards=entries,
        shard_table=table,
        rejected=[],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    content = pack_table(make_entries(20))
    (tmp_path / TABLE_NAME).write_bytes(content)
    table = FileEntry(name=TABLE_NAME, bytes=len(content), crc32c=storage.crc32c(content))
    (tmp_path / MANIFEST_NAME).write_bytes(make_manifest([], table).to_json())
    return tmp_path


def test_entries_are_those_that_were_packed() -> None:
    entries = make_entries(20)
    table = parse_table(pack_table(entries), where="x")
    assert list(table) == entries and table == entries and table[-1] == entries[-1] and table[3:9] == entries[3:9]
    assert len(table) == 20 and table == parse_table(pack_table(entries), where="x") and table != entries[:-1]
    with pytest.raises(IndexError):
        table[20]
    for columns in (table.columns, shard_columns(entries)):
        assert columns.first.tolist() == [entry.first for entry in entries]
        assert columns.bytes.tolist() == [entry.bytes for entry in entries]
        assert columns.samples.sum() == 200 and columns.tombstones.tolist() == [entry.tombstones for entry in entries]
        assert columns.of_split("test").tolist() == list(range(10, 20)) and not columns.is_of("validation").any()


def test_manifest_with_a_table_reads_like_one_with_a_list(folder: Path) -> None:
    """Loaded, it has the entries; written again, it has the bytes that it had."""
    entries = make_entries(20)
    loaded = ShardManifest.load(storage.normalise(folder))
    assert list(loaded.shards) == entries and loaded.shards == make_manifest(entries).shards
    assert loaded.to_json() == (folder / MANIFEST_NAME).read_bytes()
    assert {entry.name for entry in loaded.owned_files()} == {TABLE_NAME, *(entry.name for entry in entries)}
    assert ShardManifest.load(storage.normalise(folder / MANIFEST_NAME)).shards == loaded.shards
    listed = make_manifest(entries)
    assert ShardManifest.parse(listed.to_json(), where="x").shards == entries


def test_damaged_tables(folder: Path) -> None:
    path = folder / TABLE_NAME
    content = path.read_bytes()
    for changed in (content[:-1], content[:100] + b"X" + content[101:]):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="not as its manifest says"):
            ShardManifest.load(storage.normalise(folder))
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        ShardManifest.load(storage.normalise(folder))
    for changed, message in (
        (b"X" + content[1:], "no table"),
        (content[:8] + b"\7" + content[9:], "version 7"),
        (content[:200], "20 shards take"),
        (content[:-1], "bytes of names"),
    ):
        with pytest.raises(DataError, match=message):
            parse_table(changed, where="x")


def test_contracts_do_without_numpy() -> None:
    """The launcher starts without it, which takes a tenth of a second."""
    code = "import sys; from contracts.artifacts import ShardManifest; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
