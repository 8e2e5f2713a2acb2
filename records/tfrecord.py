"""TFRecord shards: records of tf.train.Example with the feature names of TF-Slim.

With named fields, a feature has the name of its field: an image, bytes, text, category and json a list of one bytes
value, a class or classes their int64 indices, a number or numbers float32 values (NaN where one is missing). Beside
them are NAME/format of an image, NAME/text (names) of classes, NAME/float64 (little-endian, packed in one bytes value:
float32 alone would lose digits), and of the whole sample sample/path, sample/width and sample/height (of the first
image).

Framing and protocol buffers are written by hand: the message is small and fixed, and its image is never copied. A
record is its length (8 bytes, little-endian), the masked crc32c of those, the data, and the masked crc32c of the data:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
Wire format: https://protobuf.dev/programming-guides/encoding/ ; messages: tensorflow/core/example/*.proto
"""

from __future__ import annotations

import json
import struct

import google_crc32c
import numpy as np

from records.sample import ChecksumStream, Piece, Place, Sample

SUFFIX = ".tfrecord"
_MASK_DELTA = 0xA282EAD8

# Tags of length-delimited fields: field number << 3 | 2.
_FIELD_1 = b"\x0a"  # Example.features, Features.feature, its key, Feature.bytes_list, the lists' values
_FIELD_2 = b"\x12"  # the value of an entry in Features.feature, Feature.float_list
_FIELD_3 = b"\x1a"  # Feature.int64_list


class TFRecordWriter:
    """Writes samples as records of tf.train.Example.

    Args:
        stream: Receives the bytes, from the start of the shard on.
    """

    def __init__(self, stream: ChecksumStream) -> None:
        self._stream = stream

    def write(self, sample: Sample) -> Place:
        """Append a record; return where its tf.train.Example is, without the framing."""
        if sample.values:
            example = Piece.of(*encode_fields(sample))
        else:
            before, after = encode_example(sample)
            example = Piece.of(before, sample.content, after)
        length = struct.pack("<Q", example.size)
        head = Piece.of(length + struct.pack("<I", mask_crc(google_crc32c.value(length))))
        offset = self._stream.position + head.size
        self._stream.write(head, example, Piece.of(struct.pack("<I", mask_crc(example.crc32c))))
        return Place(offset, example.size, example.crc32c)

    def close(self) -> None:
        """Nothing ends a TFRecord file."""


def mask_crc(crc: int) -> int:
    """Return the masked form of a crc32c: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def encode_example(sample: Sample) -> tuple[bytes, bytes]:
    """Return the serialised Example as what comes before the image bytes and what comes after them."""
    rest = b"".join(
        (
            _entry(b"image/format", _bytes_feature(sample.image_format.encode())),
            _entry(b"image/height", _int64_feature(sample.height)) if sample.width else b"",
            _entry(b"image/width", _int64_feature(sample.width)) if sample.width else b"",
            _entry(b"image/class/label", _int64_feature(*(sample.labels or (sample.label,)))),
            _entry(b"image/class/text", _bytes_feature(*map(str.encode, sample.class_names or (sample.class_name,)))),
            _entry(b"image/filename", _bytes_feature(sample.path.encode())),
        )
    )
    prefix = _open_entry(b"image/encoded", len(sample.content))
    features_bytes = len(prefix) + len(sample.content) + len(rest)
    return _FIELD_1 + _varint(features_bytes) + prefix, rest


def encode_fields(sample: Sample) -> list[bytes]:
    """Return the serialised Example of a sample of named fields in pieces, files first, which are not copied."""
    files: list[bytes] = []
    rest: list[bytes] = []
    for field, kind, value, image_format in sample.values:
        name = field.encode()
        if kind in ("image", "bytes"):
            files += [_open_entry(name, len(value)), value]
            if image_format:
                rest.append(_entry(name + b"/format", _bytes_feature(image_format.encode())))
        elif kind in ("text", "category"):
            rest.append(_entry(name, _bytes_feature(value.encode())))
        elif kind in ("class", "classes"):
            places, names = ((value[0],), (value[1],)) if kind == "class" else value
            rest.append(_entry(name, _int64_feature(*places)))
            rest.append(_entry(name + b"/text", _bytes_feature(*map(str.encode, names))))
        elif kind in ("number", "numbers"):
            numbers = np.array([value] if kind == "number" else value, "<f8")
            with np.errstate(over="ignore"):
                # What is beyond float32 becomes infinite there.
                rest.append(_entry(name, _float_feature(numbers.astype("<f4").tobytes())))
            rest.append(_entry(name + b"/float64", _bytes_feature(numbers.tobytes())))
        else:
            rest.append(_entry(name, _bytes_feature(json.dumps(value, allow_nan=False).encode())))
    rest.append(_entry(b"sample/path", _bytes_feature(sample.path.encode())))
    if sample.width:
        rest.append(_entry(b"sample/width", _int64_feature(sample.width)))
        rest.append(_entry(b"sample/height", _int64_feature(sample.height)))
    parts = [*files, b"".join(rest)]
    return [_FIELD_1 + _varint(sum(map(len, parts))), *parts]


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at a place of a protocol buffer, and the place behind it.

    Raises:
        IndexError: The content ends within it.
    """
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    assert value >= 0, value
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _entry(name: bytes, feature: bytes) -> bytes:
    return _delimited(_FIELD_1, _delimited(_FIELD_1, name) + _delimited(_FIELD_2, feature))


def _open_entry(name: bytes, size: int) -> bytes:
    """Return what stands before the value of a feature of one bytes value: the value itself is never copied."""
    # From the inside out: BytesList.value, Feature.bytes_list, the entry's value.
    prefix = b""
    for opening in (_FIELD_1, _FIELD_1, _FIELD_2):
        prefix = opening + _varint(len(prefix) + size) + prefix
    prefix = _delimited(_FIELD_1, name) + prefix
    return _FIELD_1 + _varint(len(prefix) + size) + prefix


def _float_feature(packed: bytes) -> bytes:
    return _delimited(_FIELD_2, _delimited(_FIELD_1, packed))


def _bytes_feature(*values: bytes) -> bytes:
    return _delimited(_FIELD_1, b"".join(_delimited(_FIELD_1, value) for value in values))


def _int64_feature(*values: int) -> bytes:
    # Packed, as protocol buffers of version 3 write lists of numbers.
    return _delimited(_FIELD_3, _delimited(_FIELD_1, b"".join(map(_varint, values))))
