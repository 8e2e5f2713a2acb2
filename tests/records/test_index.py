"""The index of a shard and the reading of samples by it: what is damaged is named."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from contracts import storage
from contracts.errors import DataError
from records.fields import image_of
from records.index import (
    ROW,
    SampleIndex,
    choose_by_class,
    key_of,
    pack_index,
    read_index,
    read_payload,
    read_samples,
)
from rehearsal.gcs import BucketServer
from tests.records.small_shards import FORMATS, frame, make_sample, write_shards


@pytest.mark.parametrize("shard_format", FORMATS)
def test_samples_are_numbered_over_all_shards(tmp_path: Path, shard_format: str) -> None:
    manifest, uri = write_shards(tmp_path, shard_format), storage.normalise(tmp_path)
    index = SampleIndex(manifest, uri)
    samples = [make_sample(number) for number in range(24)]
    assert len(index) == 24
    assert [bytes(index[place]["key"].tobytes()) for place in range(24)] == [sample.key for sample in samples]
    assert index.labels(3, 12).tolist() == [sample.label for sample in samples[3:15]]
    assert list(read_samples(index, uri, [20, 3, 3])) == [frame(samples[n], shard_format) for n in (20, 3, 3)]
    for place in (24, -1):
        with pytest.raises(IndexError):
            index[place]
    assert manifest.shards[2].split == "train" and manifest.shards.locate(6) == (2, 0)


def test_every_class_comes_once_before_any_comes_twice(tmp_path: Path) -> None:
    samples = [make_sample(number) for number in (0, 3, 6, 9, 1, 4, 2)]
    manifest = write_shards(tmp_path, given=[("train", samples), ("test", [make_sample(5)])])
    index = SampleIndex(manifest, storage.normalise(tmp_path))
    assert choose_by_class(index, 5) == [0, 4, 6, 1, 5]
    assert choose_by_class(index, 100) == [0, 4, 6, 1, 5, 2, 3]


def test_samples_of_a_bucket_are_read_by_ranges(bucket_server: BucketServer, tmp_path: Path) -> None:
    manifest = write_shards(tmp_path)
    uri = "gs://bucket-1/a folder/shards"
    for path in tmp_path.iterdir():
        storage.replace(storage.join(uri, path.name), path.read_bytes())
    index = SampleIndex(manifest, uri)
    bucket_server.access_log.clear()
    found = [image_of(stored, manifest) for stored in read_samples(index, uri, range(24))]
    assert found == [make_sample(number).content for number in range(24)]
    requests = bucket_server.access_log.entries(operation="objects.media", object="*.tar")
    assert len(requests) == 24 and max(one.bytes_out for one in requests) < min(manifest.shards.bytes[2:])


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    manifest, uri = write_shards(tmp_path), storage.normalise(tmp_path)
    entry = manifest.shards[0]
    path = tmp_path / entry.index.name

    rows = np.load(path)
    with pytest.raises(DataError, match=r"train-00000000-00000\.idx\.npy has another crc32c than the manifest says"):
        path.write_bytes(path.read_bytes() + b"?")
        read_index(uri, entry)
    for content, damage in (
        (pack_index(rows[:5]), "has 5 rows of type .*, not 6 of this version"),
        (b"junk", "is no NumPy file"),
    ):
        path.write_bytes(content)
        right = entry.index.model_copy(update={"crc32c": storage.crc32c(content)})
        with pytest.raises(DataError, match=damage):
            read_index(uri, entry.model_copy(update={"index": right}))
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        SampleIndex(manifest, uri)[0]


def test_payloads_are_read_by_uri_and_descriptor_and_damage_names_shard_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = tmp_path / "train-00000.bin"
    shard.write_bytes(b"head" + b"first" + b"----" + b"second")
    rows = np.array(
        [
            (4, 5, google_crc32c.value(b"first"), 7, b"\1" * 16, 0, 0),
            (13, 6, google_crc32c.value(b"second"), -1, b"\0" * 16, 0, 0),
        ],
        ROW,
    )
    assert [read_payload(storage.normalise(shard), row) for row in rows] == [b"first", b"second"]
    assert key_of(rows[1]) == "00" * 16
    with shard.open("rb") as stream:
        assert read_payload(stream.fileno(), rows[1]) == b"second"
        assert stream.tell() == 0
        # One read may return less than is asked for.
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda descriptor, size, at: pread(descriptor, min(size, 4), at))
        assert read_payload(stream.fileno(), rows[1]) == b"second"
    shard.write_bytes(b"head" + b"fIrst" + b"----" + b"se")
    with pytest.raises(DataError, match=rf"train-00000\.bin, sample {'01' * 16} .*crc32c"):
        read_payload(storage.normalise(shard), rows[0])
    with shard.open("rb") as stream, pytest.raises(DataError, match=rf"shard a.tar, sample {'00' * 16}.* 4 bytes too"):
        read_payload(stream.fileno(), rows[1], name="a.tar")
    rows["offset"] = 2**64 - 1
    with shard.open("rb") as stream, pytest.raises(DataError, match="no file has that offset"):
        read_payload(stream.fileno(), rows[1])
    with pytest.raises(DataError, match="cannot be read"):
        read_payload(storage.normalise(tmp_path / "none"), rows[0])
