"""Shards in a bucket, of samples whose bytes are easy to count."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from records.index import RECORD
from rehearsal.gcs import BucketServer
from trainer.data.cache_folder import CacheFolder
from trainer.data.reader import ShardReader

BUCKET_SHARDS = "gs://bucket-1/a folder/shards"


def upload(folder: Path, uri: str = BUCKET_SHARDS) -> str:
    for path in folder.iterdir():
        if path.is_file():
            storage.replace(storage.join(uri, path.name), path.read_bytes())
    return uri


def data_section(cache: Path | None = None, **fields: object) -> DataSection:
    given: dict[str, object] = {"image_size": 16, "range_bytes": 16384, "block_bytes": 20000, "canonical_streams": 2}
    if cache is not None:
        given |= {"cache_dir": str(cache), "cache_bytes": 64 << 20}
    return DataSection.model_validate({**given, **fields})


def open_reader(uri: str, split: str = "train", cache: Path | None = None, **fields: object) -> ShardReader:
    data = data_section(cache, **fields)
    folder = None if storage.is_local(uri) else CacheFolder(data)
    return ShardReader(uri, ShardManifest.load(uri), split, data, folder)


@pytest.fixture
def bucket_shards(small_shards: str, bucket_server: BucketServer) -> Iterator[str]:
    """The small shards, in a bucket."""
    yield upload(storage.local_path(small_shards))
    gc.collect()


def image_runs(uri: str, split: str = "train") -> int:
    """Return the bytes from the first image of each shard to the end of its last: what there is to fetch."""
    manifest = ShardManifest.load(uri)
    index = np.frombuffer(storage.read_bytes(manifest.index.uri(uri))[64:], RECORD)
    total = 0
    for shard in manifest.shards:
        if shard.split == split:
            last = index[shard.first + shard.samples - 1]
            total += int(last["offset"]) + int(last["size"]) - int(index[shard.first]["offset"])
    return total


def shard_requests(server: BucketServer) -> list[int]:
    """Return the bytes of each answer with bytes of a shard."""
    return [entry.bytes_out for entry in server.access_log.entries(operation="objects.media", object="*.tar")]
