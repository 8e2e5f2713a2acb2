"""The packed index and the reading of payloads: what is damaged is named."""

import os

import google_crc32c
import numpy as np
import pytest

from contracts.errors import DataError
from records.index import RECORD, key_of, read_payload


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


def test_the_key_of_a_sample_is_shown_in_hex(records):
    assert key_of(records[1]) == "00" * 16


def test_payload_by_path_and_by_descriptor(shard, records):
    assert [read_payload(shard, record) for record in records] == [b"first", b"second"]
    with shard.open("rb") as stream:
        assert read_payload(stream.fileno(), records[1]) == b"second"
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
