"""The index in the cache: looked at once an attempt, and never believed further than that."""

import gc
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import FileEntry, ShardManifest
from contracts.errors import DataError, StorageError
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import data_section, open_reader, upload
from tests.two_versions import write_versions
from trainer.data.bucket.cache_folder import CacheFolder

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def local_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_versions(tmp_path_factory.mktemp("versions"))[1]


@pytest.fixture
def bucket_shards(local_shards: Path, bucket_server: BucketServer) -> str:
    return upload(local_shards)


@pytest.fixture
def entry(bucket_shards: str) -> FileEntry:
    """A part of the index."""
    return ShardManifest.load(bucket_shards).index_parts[0]


def index_requests(server: BucketServer) -> int:
    return len(server.access_log.entries(operation="objects.media", object="*/index*.bin"))


def flip(path: Path) -> None:
    """Change a label or an offset, and leave the file's date: as bits rot."""
    content, status = bytearray(path.read_bytes()), path.stat()
    content[64 + 4] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_the_next_attempt_notices_what_became_of_the_index(
    bucket_shards: str, bucket_server: BucketServer, entry: FileEntry, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = CacheFolder(data_section(tmp_path), "one").index_path(bucket_shards, entry)
    harm(path)
    bucket_server.access_log.clear()
    found = CacheFolder(data_section(tmp_path), "two").index_path(bucket_shards, entry)
    assert storage.crc32c_of(found.as_uri()) == entry.crc32c
    assert index_requests(bucket_server) == 1


def test_ranks_of_an_attempt_compare_the_index_once(
    bucket_shards: str, bucket_server: BucketServer, entry: FileEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    crc32c_of = storage.crc32c_of

    def counted(uri: str, **options: Any) -> str:
        compared.append(uri)
        return crc32c_of(uri, **options)

    monkeypatch.setattr(storage, "crc32c_of", counted)

    def ask(attempt: str | None, folder: CacheFolder | None = None) -> int:
        compared.clear()
        (folder or CacheFolder(data_section(tmp_path), attempt)).index_path(bucket_shards, entry)
        return len(compared)

    # Of what comes from the bucket, and then once for each attempt.
    assert [ask("one"), ask("one"), ask("two"), ask("two"), ask("two")] == [1, 0, 1, 0, 0]
    # A process that belongs to no attempt trusts nobody, and looks once.
    alone = CacheFolder(data_section(tmp_path))
    assert [ask(None, alone), ask(None, alone)] == [1, 0]
    # What changed since is looked at again, and what says that somebody has looked may be torn.
    [path] = (tmp_path / "index").glob("*.bin")
    os.utime(path)
    assert ask("two") == 1
    [stamp] = (tmp_path / "index").glob("*.checked")
    stamp.write_bytes(b"\xff\x00")
    assert ask("two") == 1
    assert index_requests(bucket_server) == 1


def test_another_index_is_another_file(bucket_shards: str, entry: FileEntry, tmp_path: Path) -> None:
    folder = CacheFolder(data_section(tmp_path))
    folder.index_path(bucket_shards, entry)
    with pytest.raises(DataError, match=r"the index gs://.*other is not there"):
        folder.index_path(bucket_shards, FileEntry(name="other", bytes=1, crc32c="00000000"))
    assert list((tmp_path / "index").glob("*.part")) == []


def delete_while_it_comes(monkeypatch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
    copy_range, deleted = storage.copy_range, []

    def copy_and_delete(*arguments: Any) -> int:
        if len(deleted) < times:
            deleted.append(folder)
            shutil.rmtree(folder)
        return copy_range(*arguments)

    monkeypatch.setattr(storage, "copy_range", copy_and_delete)


def test_a_folder_that_is_deleted_while_the_index_comes_is_made_again(
    bucket_shards: str, entry: FileEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    kept = CacheFolder(data_section(cache))
    delete_while_it_comes(monkeypatch, cache, times=1)
    path = kept.index_path(bucket_shards, entry)
    assert storage.crc32c_of(path.as_uri()) == entry.crc32c
    CacheFolder(data_section(cache))


def test_a_folder_that_is_deleted_again_and_again_is_not_blamed_on_the_bucket(
    bucket_shards: str, entry: FileEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    kept = CacheFolder(data_section(cache))
    delete_while_it_comes(monkeypatch, cache, times=100)
    with pytest.raises(StorageError, match="deleted again and again"):
        kept.index_path(bucket_shards, entry)


def cut_to_nothing(cache: Path) -> None:
    for path in cache.glob("**/*"):
        if path.is_file():
            os.truncate(path, 0)


def _harm_and_read(uri: str, local: str, cache: Path, harm: Callable[[Path], None]) -> None:
    reader, expected = open_reader(uri, cache=cache), open_reader(local)
    for place in range(len(expected)):
        if place % 20 == 10:
            harm(cache)
        reader.prepare([place])
        assert reader.sample(place) == expected.sample(place)


@pytest.mark.parametrize("harm", [cut_to_nothing, shutil.rmtree])
def test_reading_goes_on_when_the_cache_is_cut_to_nothing_or_deleted(
    bucket_shards: str, local_shards: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    # A process of its own: one that had mapped the index would be ended by the system (SIGBUS).
    arguments = (bucket_shards, storage.normalise(local_shards), tmp_path / "cache", harm)
    process = multiprocessing.get_context("fork").Process(target=_harm_and_read, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
