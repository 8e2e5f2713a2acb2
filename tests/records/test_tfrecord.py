"""frame() and scan() of TFRecords, against Beam's reader."""

import io
import struct

import google_crc32c
import pytest
from apache_beam.io.tfrecordio import _TFRecordUtil
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import DataError
from records.sample import Sample
from records.tfrecord import Example, find_image, frame, scan
from tests.records.small_shards import make_sample


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


@settings(max_examples=25)
@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 1000)), max_size=5))
def test_beam_reads_records_and_tensorflow_its_features(pairs):
    samples = [
        Sample(b"k" * 16, content, "jpeg", label, "cät", "cät/1.jpg", 640, 480, "RGB") for content, label in pairs
    ]
    stream = io.BytesIO(b"".join(b"".join(frame(sample)) for sample in samples))
    for sample in samples:
        body = _TFRecordUtil.read_record(stream)
        assert body == frame(sample).body
        features = Example.FromString(body).features.feature
        assert {name: list(getattr(one, one.WhichOneof("kind")).value) for name, one in features.items()} == {
            "image/encoded": [sample.content],
            "image/format": [b"jpeg"],
            "image/height": [480],
            "image/width": [640],
            "image/class/label": [sample.label],
            "image/class/text": ["cät".encode()],
            "image/filename": ["cät/1.jpg".encode()],
        }
    assert _TFRecordUtil.read_record(stream) is None


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
