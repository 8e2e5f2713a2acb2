"""gcsfs against the server, unmodified: what Beam's and fsspec's users do with it."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal.gcs import BucketServer, Rule

# gcsfs reads it at import; else it asks a gRPC service for the kind of every bucket, minutes where there is none.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def files(bucket_server: BucketServer) -> Iterator[Any]:
    import gcsfs

    gcsfs.GCSFileSystem.clear_instance_cache()
    yield gcsfs.GCSFileSystem(project="p", token="anon")
    gcsfs.GCSFileSystem.clear_instance_cache()


def test_write_read_and_list(files: Any) -> None:
    files.pipe({"bucket-1/a/one": b"1\r", "bucket-1/a/two words": b"22", "bucket-1/b": b""})
    assert files.cat(files.find("bucket-1/a")) == {"bucket-1/a/one": b"1\r", "bucket-1/a/two words": b"22"}
    assert files.ls("bucket-1", detail=False) == ["bucket-1/a", "bucket-1/b"]
    assert files.find("bucket-1") == ["bucket-1/a/one", "bucket-1/a/two words", "bucket-1/b"]
    assert files.glob("bucket-1/a/*words") == ["bucket-1/a/two words"]
    assert files.info("bucket-1/a/one")["size"] == 2
    assert files.isdir("bucket-1/a")
    assert files.cat_file("bucket-1/a/two words", start=1) == b"2"
    with pytest.raises(FileNotFoundError):
        files.cat_file("bucket-1/missing")


def test_chunks(files: Any) -> None:
    with files.open("bucket-1/big", "wb", block_size=1 << 20) as stream:
        for _ in range(7):
            stream.write(CONTENT[: 700 * 1024])
    assert files.cat("bucket-1/big") == CONTENT[: 700 * 1024] * 7
    with files.open("bucket-1/big", "rb", block_size=1 << 20) as stream:
        stream.seek(1_000_000)
        assert stream.read(10) == (CONTENT[: 700 * 1024] * 2)[1_000_000:1_000_010]


def test_exclusive_creation(files: Any) -> None:
    for content in (b"one", CONTENT * 6):
        files.pipe_file("bucket-1/x", content, mode="create")
        with pytest.raises(FileExistsError):
            files.pipe_file("bucket-1/x", content, mode="create")
        files.rm("bucket-1/x")


def test_files_are_deleted(files: Any) -> None:
    files.pipe("bucket-1/x", b"abc")
    files.rm("bucket-1/x")
    files.invalidate_cache()
    assert files.find("bucket-1") == []


@pytest.mark.parametrize("fault", [{"status": 503}, {"reset_at": 1000}], ids=str)
def test_faults_are_retried(files: Any, bucket_server: BucketServer, fault: dict[str, int]) -> None:
    files.pipe("bucket-1/x", CONTENT)
    bucket_server.faults.set(Rule.model_validate({"operation": "objects.media", "limit": 1, **fault}))
    assert files.cat("bucket-1/x") == CONTENT
    assert bucket_server.faults.hits() == [1]
