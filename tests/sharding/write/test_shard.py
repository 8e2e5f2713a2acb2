"""Writing one shard: a function of its references, however often and in whatever order it is called."""

import dataclasses
import json
import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.errors import TryAgain
from records.index_parts import ROW
from records.statistics import ChannelSums
from sharding.plan import make_key
from sharding.write import shard as shard_module
from sharding.write.check import Checks
from sharding.write.shard import OtherVerdicts, order_references, write_shard

STEM = "train-1a2b3c4d-00000"


def write(references, job, **options):
    return write_shard(STEM, 7, 0, references, job, **options)


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_again_and_in_another_order_gives_the_same_bytes(make_job, tmp_path, shard_format):
    job, references = make_job(shard_format=shard_format)
    record = write(references, job)
    assert record.name == STEM + {"webdataset": ".tar", "tfrecord": ".tfrecord"}[shard_format]
    content = (tmp_path / "out" / record.name).read_bytes()
    assert (record.shard, record.shard_bytes, record.crc32c) == (7, len(content), storage.crc32c(content))
    random.Random(0).shuffle(references)
    assert write(references, job) == record
    assert (tmp_path / "out" / record.name).read_bytes() == content
    assert {path.name for path in (tmp_path / "out").iterdir()} == {record.name, ".work"}


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_columns_are_those_of_the_samples(make_job, tmp_path, source, shard_format):
    job, references = make_job(shard_format=shard_format)
    record = write(references, job)
    shard = (tmp_path / "out" / record.name).read_bytes()
    rows = np.frombuffer(record.rows, ROW)
    ordered = order_references(references, job.seed)
    assert record.num_samples == len(rows) == len(ordered) == len(references)
    images = [(source / one.path.decode()).read_bytes() for one in ordered]
    for row, one, image in zip(rows, ordered, images, strict=True):
        sample = shard[row["offset"] : row["offset"] + row["size"]]
        assert google_crc32c.value(sample) == row["crc32c"]
        assert image in sample and row["key"].tobytes() == make_key(one.path)
    if shard_format == "webdataset":
        # Samples follow each other without a gap, up to the two empty blocks.
        assert rows["offset"].tolist() == [0, *np.cumsum(rows["size"])[:-1]]
        assert rows["size"].sum() + 1024 == len(shard)
    assert np.frombuffer(record.labels, "<i4").tolist() == [one.label for one in ordered]
    assert record.sources == b"".join(one.identity(job.classes) for one in ordered)
    expected = [google_crc32c.value(image) << 32 | len(image) for image in images]
    assert np.frombuffer(record.contents, "<u8").tolist() == expected
    assert record.source_bytes == sum(map(len, images))


def test_other_content_under_its_name_is_never_replaced(make_job, tmp_path):
    job, references = make_job()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{STEM}.tar").write_bytes(b"other")
    with pytest.raises(storage.AlreadyPublished):
        write(references, job)
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()] == [b"other"]


def test_an_interrupted_call_leaves_no_file(make_job, tmp_path, source):
    job, references = make_job()
    (source / references[-1].path.decode()).unlink()
    with pytest.raises(TryAgain, match="vanished"):
        write(references, job)
    assert list((tmp_path / "out").iterdir()) == []


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_sums_are_exact(height, width, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    wide = pixels.reshape(-1, 3).astype(np.int64)
    expected = ChannelSums(len(wide), tuple(wide.sum(axis=0).tolist()), tuple((wide**2).sum(axis=0).tolist()))
    assert ChannelSums.of(pixels) == expected
    assert ChannelSums.of(pixels) + ChannelSums() == expected


# --- verdicts ---------------------------------------------------------------------------------------------------------


def verdict_file(job):
    return storage.local_path(job.work_uri) / job.key / f"verdict-{STEM}"


def test_a_verdict_is_published_before_the_shard_and_its_file_is_never_opened(make_job, source, monkeypatch):
    job, references = make_job()
    path = references[3].path
    # No such name could be read back, if it were not encoded.
    (source / path.decode()).unlink()
    publish_file = storage.publish_file
    seen = []

    def look_then_publish(*arguments):
        seen.append(json.loads(verdict_file(job).read_bytes()))
        publish_file(*arguments)

    monkeypatch.setattr(shard_module.storage, "publish_file", look_then_publish)
    record = write(references, job, verdicts={path: "it aborts"})
    assert seen == [{path.decode(): "it aborts"}]
    assert record.rejected == ((path, "it aborts"),) and record.num_samples == len(references) - 1
    assert write(references, job, verdicts={path: "it aborts"}) == record


def test_that_nothing_was_rejected_is_a_verdict_too(make_job):
    """Else another attempt's rejection would come between this shard and its record."""
    job, references = make_job()
    record = write(references, job)
    assert json.loads(verdict_file(job).read_bytes()) == {} and record.rejected == ()
    with pytest.raises(OtherVerdicts) as raised:
        write(references, job, verdicts={references[0].path: "it aborts"})
    assert raised.value.verdicts == {}


@pytest.mark.parametrize("ours", [{}, {b"ant/00.png": "too slow"}])
def test_the_first_attempts_verdict_is_obeyed(make_job, tmp_path, ours):
    job, references = make_job()
    theirs = {b"bee/01%\xff.jpg": "it aborts"}
    write([], job, verdicts=theirs)
    with pytest.raises(OtherVerdicts) as raised:
        write(references, job, verdicts=ours)
    assert raised.value.verdicts == theirs
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".work"}
    # Where nothing is decoded there can be none: no request is spent on it.
    copied = dataclasses.replace(job, checks=Checks("none"))
    assert write(references, copied).num_samples == len(references)


def test_rejected_files_are_named_in_the_same_order_whenever_it_is_known(make_job, source, write_file):
    write_file(source, b"ant/aa.png", b"text")
    write_file(source, b"ant/zz.png", b"text")
    job, references = make_job()
    paths = {b"ant/aa.png", b"ant/zz.png"} & {one.path for one in references}
    record = write(references, job)
    assert {path for path, _ in record.rejected} == paths and paths
    known = write_shard("other", 7, 0, references, job, verdicts=dict(record.rejected[-1:]))
    assert known.rejected == record.rejected and known.rows == record.rows
