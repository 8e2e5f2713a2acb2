"""The packed index and the reading of payloads: what is damaged is named."""

import os

import google_crc32c
import numpy as np
import pytest

from contracts.errors import DataError
from records.index import RECORD, key_of, open_index, read_payload, write_index


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "train-00000.bin"
    path.write_bytes(b"head" + b"first" + b"----" + b"second")
    return path


@pytest.fixture
def records():
    rows = [
        (0, 7, 4, 5, google_crc32c.value(b"first"), b"\1" * 16),
        (0, -1, 13, 6, google_crc32c.value(b"second"), b"\0" * 16),
    ]
    return np.array(rows, RECORD)


@pytest.fixture
def index_path(tmp_path, records):
    path = tmp_path / "index.bin"
    write_index(path, records)
    return path


def test_record_is_40_bytes():
    assert RECORD.itemsize == 40


def test_round_trip_is_mapped_and_read_only(index_path, records):
    index = open_index(index_path)
    assert isinstance(index, np.memmap)
    assert np.array_equal(index, records)
    assert key_of(index[1]) == "00" * 16
    with pytest.raises(ValueError):
        index["label"][0] = 1


def test_empty_index(tmp_path):
    write_index(tmp_path / "empty.bin", np.empty(0, RECORD))
    assert len(open_index(tmp_path / "empty.bin")) == 0


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 100, 143])
def test_truncated_index(index_path, cut):
    os.truncate(index_path, cut)
    with pytest.raises(DataError, match=r"index\.bin"):
        open_index(index_path)


def test_longer_index(index_path):
    index_path.write_bytes(index_path.read_bytes() + b"x")
    with pytest.raises(DataError, match="its header says 144"):
        open_index(index_path)


@pytest.mark.parametrize(("at", "message"), [(0, "is no index"), (8, "has version")])
def test_foreign_or_newer_index(index_path, at, message):
    content = bytearray(index_path.read_bytes())
    content[at] ^= 0x40
    index_path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_index(index_path)


def test_missing_index(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        open_index(tmp_path / "index.bin")


def test_payload_by_path_and_by_descriptor(shard, index_path):
    index = open_index(index_path)
    assert [read_payload(shard, record) for record in index] == [b"first", b"second"]
    with shard.open("rb") as stream:
        assert read_payload(stream.fileno(), index[1]) == b"second"
        assert stream.tell() == 0


def test_wrong_payload_names_shard_and_key(shard, records):
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"train-00000\.bin, sample {'01' * 16} .*crc32c"):
        read_payload(shard, records[0])
    with shard.open("rb") as stream, pytest.raises(DataError, match=rf"shard 0, sample {'01' * 16}"):
        read_payload(stream.fileno(), records[0])


def test_short_and_missing_shards(shard, records, tmp_path):
    os.truncate(shard, 15)
    with pytest.raises(DataError, match="ends 4 bytes too early"):
        read_payload(shard, records[1])
    with pytest.raises(DataError, match="cannot be read"):
        read_payload(tmp_path / "none", records[0])
