"""Writing one shard: a function of its references, however often and in whatever order it is called."""

import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.errors import TryAgain
from records.index import read_index
from records.statistics import ChannelSums
from sharding.job import open_job
from sharding.write import hash_content, order_references, write_shard


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_again_and_in_another_order_gives_the_same_bytes(make_job, source, shard_format):
    handle, references = make_job(format=shard_format)
    job = open_job(handle)
    result = write_shard(job, 0, references)
    (entry,) = result.shards
    shard = storage.read_bytes(entry.uri(job.output_uri))
    assert (entry.bytes, entry.crc32c) == (len(shard), storage.crc32c(shard))
    rows = read_index(job.output_uri, entry)
    ordered = order_references(references, job.planned.plan.seed)
    for row, one in zip(rows, ordered, strict=True):
        image = (source / one.path.decode()).read_bytes()
        sample = shard[row["offset"] : row["offset"] + row["size"]]
        assert google_crc32c.value(sample) == row["crc32c"] and image in sample
        assert (row["key"].tobytes(), int(row["label"]), int(row["source"])) == (one.key, one.labels[0], one.source)
        assert int(row["content"]) == hash_content(image)
    if shard_format == "webdataset":
        # Samples follow each other without a gap, up to the two empty blocks.
        assert rows["offset"].tolist() == [0, *np.cumsum(rows["size"])[:-1]]
        assert rows["size"].sum() + 1024 == len(shard)
    random.Random(0).shuffle(references)
    assert write_shard(job, 0, references) == result
    assert storage.read_bytes(entry.uri(job.output_uri)) == shard
    names = {path.name for path in storage.local_path(job.output_uri).iterdir()}
    assert names == {entry.name, entry.index.name, ".work"}


def test_other_content_under_its_name_is_never_replaced(make_job):
    handle, references = make_job()
    job = open_job(handle)
    place = storage.local_path(job.output_uri) / f"{job.stem_of(0)}.tar"
    place.write_bytes(b"other")
    with pytest.raises(storage.AlreadyPublished):
        write_shard(job, 0, references)
    assert place.read_bytes() == b"other"


def test_an_interrupted_call_leaves_no_file(make_job, source):
    handle, references = make_job()
    (source / references[-1].path.decode()).unlink()
    with pytest.raises(TryAgain, match="vanished"):
        write_shard(open_job(handle), 0, references)
    assert [path.name for path in storage.local_path(handle.output_uri).iterdir()] == [".work"]


def test_rejected_files_are_named_in_the_same_order_whenever_it_is_known(make_job, source, write_file):
    write_file(source, b"ant/aa.png", b"text")
    write_file(source, b"ant/zz.png", b"text")
    handle, references = make_job(splits={"train": 1, "validation": 0, "test": 0})
    result = write_shard(open_job(handle), 0, references)
    assert [path for path, _ in result.rejected] == ["ant/aa.png", "ant/zz.png"] and result.num_rejected == 2
    (source / "ant/zz.png").unlink()
    known = write_shard(open_job(handle), 0, references, {b"ant/zz.png": result.rejected[-1][1]})
    assert known == result


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_sums_are_exact(height, width, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    wide = pixels.reshape(-1, 3).astype(np.int64)
    expected = ChannelSums(len(wide), tuple(wide.sum(axis=0).tolist()), tuple((wide**2).sum(axis=0).tolist()))
    assert ChannelSums.of(pixels) == expected
    assert ChannelSums.of(pixels) + ChannelSums() == expected
