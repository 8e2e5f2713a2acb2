"""The TFRecord writer, read back by an independent little reader: framing, checksums, and any protobuf message."""

import io
import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.sample import ChecksumStream, Sample
from records.tfrecord import TFRecordWriter


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def read_fields(data):
    """Return (field number, content) of a message whose fields are all length-delimited."""
    fields, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        assert tag & 7 == 2
        length, at = read_varint(data, at)
        assert at + length <= len(data)
        fields.append((tag >> 3, data[at : at + length]))
        at += length
    return fields


def read_example(data):
    ((number, features),) = read_fields(data)
    assert number == 1
    found = {}
    for entry_number, entry in read_fields(features):
        assert entry_number == 1
        parts = dict(read_fields(entry))
        ((kind, values),) = read_fields(parts[2])
        ((_, value),) = read_fields(values)
        found[parts[1].decode()] = value if kind == 1 else read_varint(value, 0)[0]
        assert kind in (1, 3)
    return found


def unmask(masked):
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17) | (rotated << 15) & 0xFFFFFFFF


def read_records(content):
    records, at = [], 0
    while at < len(content):
        length, length_crc = struct.unpack_from("<QI", content, at)
        assert unmask(length_crc) == google_crc32c.value(content[at : at + 8])
        data = content[at + 12 : at + 12 + length]
        (data_crc,) = struct.unpack_from("<I", content, at + 12 + length)
        assert unmask(data_crc) == google_crc32c.value(data)
        records.append(data)
        at += 16 + length
    return records


def make_sample(content, label=3):
    return Sample(b"k" * 16, content, "jpeg", label, "cät", "cät/1.jpg", 640, 480, "RGB")


def write(samples):
    file = io.BytesIO()
    stream = ChecksumStream(file)
    writer = TFRecordWriter(stream)
    places = [writer.write(sample) for sample in samples]
    writer.close()
    assert stream.crc32c == f"{google_crc32c.value(file.getvalue()):08x}"
    return file.getvalue(), places


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 2**40)), max_size=5))
def test_records_and_places(pairs):
    samples = [make_sample(content, label) for content, label in pairs]
    content, places = write(samples)
    records = read_records(content)
    assert len(records) == len(samples)
    for sample, place, record in zip(samples, places, records, strict=True):
        # The whole Example, without its framing.
        assert content[place.offset : place.offset + place.size] == record
        assert place.crc32c == google_crc32c.value(record)
        assert read_example(record) == {
            "image/encoded": sample.content,
            "image/format": b"jpeg",
            "image/height": 480,
            "image/width": 640,
            "image/class/label": sample.label,
            "image/class/text": "cät".encode(),
            "image/filename": "cät/1.jpg".encode(),
        }


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16383, 16384, 2_100_000])
def test_lengths_around_the_steps_of_a_varint(size):
    sample = make_sample(bytes(size))
    content, (place,) = write([sample])
    assert read_example(read_records(content)[0])["image/encoded"] == sample.content
    assert place.size == len(read_records(content)[0])


def test_mask_is_that_of_the_format():
    # A record known to TensorFlow's readers: length 0 has crc32c 0x8c28b28a, masked and little-endian as below.
    from records.tfrecord import mask_crc

    assert google_crc32c.value(bytes(8)) == 0x8C28B28A
    assert struct.pack("<I", mask_crc(0x8C28B28A)).hex() == "29039807"
