"""Writing one shard: a function of its references, however often and in whatever order it is called."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.config import ShardingSection
from records.decode import decode_rgb
from records.statistics import ChannelSums
from sharding.plan import make_plan, place
from sharding.sources import list_source
from sharding.write.shard import Job, write_shard


@pytest.fixture
def work(source, tmp_path):
    """Return a job with one shard a split, and the references of its training shard."""
    listing = list_source(ShardingSection(source=str(source)))
    samples = [(reference.path, reference.split, reference.size) for reference in listing.references]
    plan = make_plan(samples, seed=3, target_shard_bytes=10**6, min_shards=1)
    job = Job(listing.uri, storage.normalise(tmp_path / "out"), listing.classes, "webdataset", plan)
    return job, [one for one in listing.references if place(plan, one.path, one.split) == 0]


def test_again_and_in_another_order_gives_the_same_bytes(work, tmp_path):
    job, references = work
    record = write_shard(0, references, job)
    content = (tmp_path / "out" / record.name).read_bytes()
    assert record.shard_bytes == len(content) and record.crc32c == storage.crc32c(content)
    random.Random(0).shuffle(references)
    assert write_shard(0, references, job) == record
    assert (tmp_path / "out" / record.name).read_bytes() == content
    assert {path.name for path in (tmp_path / "out").iterdir()} == {record.name, "train-00000.idx"}


def test_other_content_under_its_name_is_never_replaced(work, tmp_path):
    job, references = work
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train-00000.tar").write_bytes(b"other")
    with pytest.raises(storage.AlreadyPublished):
        write_shard(0, references, job)
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"other"]


def test_an_interrupted_call_leaves_no_file(work, tmp_path, source):
    job, references = work
    (source / references[-1].path.decode()).unlink()
    with pytest.raises(Exception, match="vanished"):
        write_shard(0, references, job)
    assert list((tmp_path / "out").iterdir()) == []


def test_sums_are_of_all_training_pixels(work, source):
    job, references = work
    sums = write_shard(0, references, job).channel_sums
    pixels = np.concatenate(
        [decode_rgb((source / one.path.decode()).read_bytes()).reshape(-1, 3) for one in references]
    )
    wide = pixels.astype(np.int64)
    assert sums == ChannelSums(len(wide), tuple(wide.sum(axis=0).tolist()), tuple((wide**2).sum(axis=0).tolist()))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_sums_are_exact(height, width, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    wide = pixels.reshape(-1, 3).astype(np.int64)
    expected = ChannelSums(len(wide), tuple(wide.sum(axis=0).tolist()), tuple((wide**2).sum(axis=0).tolist()))
    assert ChannelSums.of(pixels) == expected
    assert ChannelSums.of(pixels) + ChannelSums() == expected
