"""Writing one shard: a function of its references, however often and in whatever order it is called."""

import random

import google_crc32c
import numpy as np
import pytest

from contracts import storage
from records.index import read_index
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


def test_rejected_files_are_named_in_the_same_order_whenever_it_is_known(make_job, source, write_file):
    write_file(source, b"ant/aa.png", b"text")
    write_file(source, b"ant/zz.png", b"text")
    handle, references = make_job(splits={"train": 1, "validation": 0, "test": 0})
    result = write_shard(open_job(handle), 0, references)
    assert [path for path, _ in result.rejected] == ["ant/aa.png", "ant/zz.png"] and result.num_rejected == 2
    (source / "ant/zz.png").unlink()
    known = write_shard(open_job(handle), 0, references, {b"ant/zz.png": result.rejected[-1][1]})
    assert known == result
