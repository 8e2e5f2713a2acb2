"""Index versions 1 and 2 of the same shards: the same order, the same samples, locally and from a bucket."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import open_reader, upload
from tests.two_versions import plan, write_versions
from trainer.data.bucket.rows import FetchedRows
from trainer.data.order.cursor import slot_requests
from trainer.data.order.resolve import make_order, resolve_order
from trainer.data.reader import ShardReader
from trainer.data.shards import check_index

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
V1, V2 = "gs://bucket-1/v1", "gs://bucket-1/v2"
# A few small files each; blocks hold some samples of several shards.
FIELDS = {"range_bytes": 2000, "block_bytes": 12000, "canonical_streams": 2}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return write_versions(tmp_path / "shards", shards=plan(8))


@pytest.fixture
def bucket(folders: tuple[Path, Path], bucket_server: BucketServer) -> Iterator[BucketServer]:
    for folder, uri in zip(folders, (V1, V2), strict=True):
        upload(folder, uri)
    bucket_server.access_log.clear()
    yield bucket_server
    gc.collect()


def index_bytes(server: BucketServer) -> int:
    return sum(one.bytes_out for one in server.access_log.entries(operation="objects.media", object="v2/index*"))


def read_epochs(
    uri: str, cache: Path | None, *, order: str = "auto", start: int = 0
) -> tuple[list[tuple[int, int, bytes]], ShardReader]:
    """Train two epochs of nothing: return place, label and image of each sample, and what has read them."""
    reader = open_reader(uri, cache=cache, order=order, **FIELDS)
    manifest = ShardManifest.load(uri)
    record = resolve_order(reader.data, uri, manifest, None).order
    if record.kind == "full":
        reader.fetch_index()
    chosen = make_order(record, manifest, seed=1)
    reader.set_order(chosen, global_batch_size=16)
    found = []
    for request in slot_requests(start, order=chosen, epochs=2, global_batch_size=16, slot_size=4, rank=0, ranks=1):
        reader.prepare(list(request.samples), request)
        for place in request.samples:
            sample = reader.sample(place)
            found.append((place, sample["label"], sample["image"]))
    return found, reader


@pytest.mark.parametrize(("shard_format", "table"), [("webdataset", True), ("tfrecord", False)])
def test_local_shards(tmp_path: Path, shard_format: str, table: bool) -> None:
    v1, v2 = write_versions(tmp_path, shard_format=shard_format, table=table)
    expected, _ = read_epochs(storage.normalise(v1), None)
    found, reader = read_epochs(storage.normalise(v2), None)
    assert found == expected and len(found) > 80
    for place in range(len(reader)):
        assert reader.next_of_class(place) == open_reader(storage.normalise(v1)).next_of_class(place)


@pytest.mark.parametrize("order", ["blocks", "full"])
def test_shards_in_a_bucket(folders: tuple[Path, Path], bucket: BucketServer, tmp_path: Path, order: str) -> None:
    expected, _ = read_epochs(V1, tmp_path / "c1", order=order)
    found, reader = read_epochs(V2, tmp_path / "c2", order=order)
    assert found == expected
    # From the middle of an epoch on, by another process with an empty cache.
    assert read_epochs(V2, tmp_path / "c3", order=order, start=64)[0] == expected[64:]
    validation, local = (
        open_reader(V2, "validation", tmp_path / "c2", **FIELDS),
        open_reader(folders[0].as_uri(), "validation"),
    )
    assert [validation.sample(place) for place in range(9)] == [local.sample(place) for place in range(9)]
    assert isinstance(validation.index, FetchedRows) and isinstance(reader.index, FetchedRows) == (order == "blocks")


def test_rows_are_fetched_by_shard_and_once_for_all_processes(bucket: BucketServer, tmp_path: Path) -> None:
    reader = open_reader(V2, cache=tmp_path / "cache", order="blocks", **FIELDS)
    manifest = ShardManifest.load(V2)
    assert len(reader) == 92 and index_bytes(bucket) == 0
    reader.sample(0)
    of_shard = 64 + manifest.shards[0].samples * 44
    assert index_bytes(bucket) == of_shard
    for again in (reader, open_reader(V2, cache=tmp_path / "cache", **FIELDS)):
        again.sample(3)
    assert index_bytes(bucket) == of_shard
    # The labels alone.
    bucket.access_log.clear()
    labels = reader.index.labels(0, 92)
    parts = [part for part in manifest.index_parts if part.first < 92]
    assert len(labels) == 92 and index_bytes(bucket) <= 92 * 4 + 64 * len(parts)
    # All parts of the split, and no other.
    bucket.access_log.clear()
    assert reader.fetch_index() == index_bytes(bucket) == sum(part.bytes for part in parts)
    assert reader.fetch_index() == 0


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)


def flip_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[24] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, 80)


@pytest.mark.parametrize("harm", [flip, flip_header, cut])
def test_rows_on_disk_are_not_believed(bucket: BucketServer, tmp_path: Path, harm: object) -> None:
    cache = tmp_path / "cache"
    expected = [open_reader(V2, cache=cache).sample(place) for place in range(30)]
    kept = [path for path in (cache / "index" / "rows").iterdir() if not path.name.startswith(".")]
    assert kept
    for path in kept:
        harm(path)  # type: ignore[operator]
    reader = open_reader(V2, cache=cache)
    assert [reader.sample(place) for place in range(30)] == expected
    shutil.rmtree(cache)
    assert [open_reader(V2, cache=cache).sample(place) for place in range(30)] == expected


def test_rows_that_are_wrong_in_the_bucket_are_named(
    folders: tuple[Path, Path], bucket: BucketServer, tmp_path: Path
) -> None:
    part = folders[1] / ShardManifest.load(V2).index_parts[0].name
    content = bytearray(part.read_bytes())
    # A label: no image has a checksum of it.
    content[64 + 17 * 32] ^= 1
    storage.replace(f"{V2}/{part.name}", bytes(content))
    with pytest.raises(DataError, match=r"wrong rows for shard train-00000\.tar"):
        open_reader(V2, cache=tmp_path / "a").sample(0)
    with pytest.raises(DataError, match="its manifest says"):
        open_reader(V2, cache=tmp_path / "b").fetch_index()
    storage.delete(f"{V2}/{part.name}")
    for read in (lambda: open_reader(V2, cache=tmp_path / "c").sample(0), open_reader(V2).fetch_index):
        with pytest.raises(DataError, match="is not there"):
            read()


def test_rows_on_disk_are_bounded(bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.bucket.rows._LEAST_DISK_BYTES", 1200)
    monkeypatch.setattr("trainer.data.bucket.rows._DISK_SHARE", 0)
    monkeypatch.setattr("trainer.data.bucket.rows.MEMORY_BYTES", 1000)
    reader, local = open_reader(V2, cache=tmp_path / "cache"), open_reader(V1, cache=tmp_path / "v1")
    for place in np.random.default_rng(0).integers(0, 92, 60).tolist():
        assert reader.sample(place) == local.sample(place)
        held = [path for path in (tmp_path / "cache/index/rows").iterdir() if not path.name.startswith(".")]
        assert 0 < sum(path.stat().st_size for path in held) <= 1200 + 900
    assert isinstance(reader.index, FetchedRows)
    assert sum(records.nbytes for records in reader.index._held.values()) <= 1000


def test_local_index_is_compared_before_training(folders: tuple[Path, Path]) -> None:
    uri = storage.normalise(folders[1])
    manifest = ShardManifest.load(uri)
    check_index(uri, manifest)
    part = folders[1] / manifest.index_parts[2].name
    flip(part)
    with pytest.raises(DataError, match=f"{part.name} has crc32c"):
        check_index(uri, manifest)
    cut(part)
    with pytest.raises(DataError, match=f"{part.name} has 80 bytes"):
        open_reader(uri)
