"""frame() and scan() of TFRecords, against Beam's reader and a plain parser of protobuf messages."""

import io
import struct

import google_crc32c
import pytest
from apache_beam.io.tfrecordio import _TFRecordUtil
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import DataError
from records.sample import Sample
from records.tfrecord import Example, find_image, frame, scan
from tests.records.small_shards import make_sample


def read_message(data):
    """Return (field number, content) of a message whose fields are all length-delimited: no code of protobuf."""

    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    fields, at = [], 0
    while at < len(data):
        tag, at = varint(at)
        assert tag & 7 == 2
        length, at = varint(at)
        assert at + length <= len(data)
        fields.append((tag >> 3, data[at : at + length]))
        at += length
    return fields


def read_features(body):
    """Return kind (1 bytes, 2 float, 3 int64) and values of each feature of a tf.train.Example."""
    ((number, features),) = read_message(body)
    assert number == 1
    found = {}
    for entry_number, entry in read_message(features):
        parts = dict(read_message(entry))
        ((kind, values),) = read_message(parts[2])
        assert entry_number == 1 and parts[1].decode() not in found
        found[parts[1].decode()] = kind, [value for _, value in read_message(values)]
    return found


def record(features, number=None):
    """Return a record of features as another program writes them."""
    example = Example()
    for name, values in features.items():
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(values[0])]
        getattr(example.features.feature[name], kind).value.extend(values)
    return pack(example.SerializeToString())


def mask(content):
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def pack(body):
    length = struct.pack("<Q", len(body))
    return length + mask(length) + body + mask(body)


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 127)), max_size=5))
def test_beam_and_a_plain_parser_read_records(pairs):
    samples = [
        Sample(b"k" * 16, content, "jpeg", label, "cät", "cät/1.jpg", 640, 480, "RGB") for content, label in pairs
    ]
    stream = io.BytesIO(b"".join(b"".join(frame(sample)) for sample in samples))
    for sample in samples:
        body = _TFRecordUtil.read_record(stream)
        assert body == frame(sample).body
        assert read_features(body) == {
            "image/encoded": (1, [sample.content]),
            "image/format": (1, [b"jpeg"]),
            "image/height": (3, [b"\xe0\x03"]),
            "image/width": (3, [b"\x80\x05"]),
            "image/class/label": (3, [bytes([sample.label])]),
            "image/class/text": (1, ["cät".encode()]),
            "image/filename": (1, ["cät/1.jpg".encode()]),
        }
    assert _TFRecordUtil.read_record(stream) is None


def test_features_are_in_the_order_of_their_names():
    """In every process alike: a map of protobuf has an order only where it is asked for."""
    names = list(read_features(frame(make_sample(1)).body))
    assert names == sorted(names)


def test_mask_is_that_of_the_format():
    # A record known to TensorFlow's readers: length 0 has crc32c 0x8c28b28a, masked and little-endian as below.
    assert google_crc32c.value(bytes(8)) == 0x8C28B28A
    with pytest.raises(DataError, match="no image"):
        list(scan(io.BytesIO(bytes(8) + bytes.fromhex("29039807") + struct.pack("<I", 0xA282EAD8)), "x"))


def test_scan_of_records_of_others():
    image = make_sample(1).content
    content = b"".join(
        (
            record({"label": [-1], "picture": [image], "weight": [0.5]}),
            record({"image/class/label": [2], "image/class/text": [b"cat"], "image/encoded": [image], "b": [b"BM"]}),
            record({"image/class/text": [b"dog"], "image/encoded": [image]}),
            record({"label": [b"cow"], "depth": [b"none"], "image/encoded": [image]}),
        )
    )
    found = list(scan(io.BytesIO(content), "x"))
    assert [(one.label, one.class_name) for one in found] == [(-1, None), (2, "cat"), ("dog", "dog"), ("cow", None)]
    for one in found:
        assert one.image == image == find_image(Example.FromString(one.body))
        assert one.body == content[one.offset : one.offset + len(one.body)]


def test_a_list_of_numbers_need_not_be_packed():
    packed = record({"label": [5], "image": [b"BM" + bytes(8)]})[12:-4]
    # int64_list {value: 5} as a list of varints, and as one varint.
    assert packed.count(b"\x12\x05\x1a\x03\x0a\x01\x05") == 1
    loose = packed.replace(b"\x12\x05\x1a\x03\x0a\x01\x05", b"\x12\x04\x1a\x02\x08\x05")
    loose = loose.replace(b"\x0a\x0e\x0a\x05label", b"\x0a\x0d\x0a\x05label")
    (found,) = scan(io.BytesIO(pack(b"\x0a" + bytes([packed[1] - 1]) + loose[2:])), "x")
    assert found.label == 5


def test_scan_names_what_is_wrong():
    good = record({"label": [1], "image/encoded": [make_sample(1).content]})

    def refused(content):
        with pytest.raises(DataError) as caught:
            list(scan(io.BytesIO(content), "x"))
        return caught.value.given

    assert refused(good + good[:9]).startswith(f"x, record at {len(good)}: the file ends within it")
    assert "record at 0: its length has a wrong checksum" in refused(b"?" + good[1:])
    assert "record at 0: its content has a wrong checksum" in refused(good[:50] + b"?" + good[51:])
    assert "record at 0: the file ends within it" in refused(good[:-7])
    assert "it is no tf.train.Example" in refused(pack(b"\xff" * 40))
    assert "no label among image/encoded" in refused(record({"image/encoded": [make_sample(1).content]}))
    assert "no image among label" in refused(record({"label": [1]}))
    length = struct.pack("<Q", 1 << 40)
    assert "2 GiB or more" in refused(length + mask(length))
