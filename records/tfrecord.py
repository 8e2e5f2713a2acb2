"""TFRecord shards: records of tf.train.Example with the feature names of TF-Slim.

With named fields, a feature has the name of its field: an image, bytes, text and json a list of one bytes value, a
class or classes their int64 indices, a number its float32 value. Beside them are NAME/format of an image, NAME/text
(names) of classes, NAME/float64 (little-endian, in one bytes value: float32 alone would lose digits), and of the whole
sample sample/path, sample/width and sample/height (of the first image).

Framing and protocol buffers are written by hand: the message is small and fixed, and its image is never copied. A
record is its length (8 bytes, little-endian), the masked crc32c of those, the data, and the masked crc32c of the data:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
Wire format: https://protobuf.dev/programming-guides/encoding/ ; messages: tensorflow/core/example/*.proto
"""

from __future__ import annotations

import functools
import json
import struct

import google_crc32c
import numpy as np

from records.sample import ChecksumStream, Piece, Place, Sample

SUFFIX = ".tfrecord"
_MASK_DELTA = 0xA282EAD8

# A record up to this size is written as one piece.
_SMALL_BYTES = 1 << 16
# Beginnings of features and whole features that are kept: names, sizes and classes come again and again.
_KEPT_ENTRIES = 1 << 14

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
            parts = encode_fields(sample)
        else:
            before, after = encode_example(sample)
            parts = [before, sample.content, after]
        size = sum(map(len, parts))
        length = struct.pack("<Q", size)
        head = length + struct.pack("<I", mask_crc(google_crc32c.value(length)))
        offset = self._stream.position + len(head)
        if size <= _SMALL_BYTES:
            # Of a row of a table the pieces would cost more than its bytes.
            content = b"".join(parts)
            crc32c = google_crc32c.value(content)
            self._stream.write(Piece.of(b"".join((head, content, struct.pack("<I", mask_crc(crc32c))))))
            return Place(offset, size, crc32c)
        example = Piece.of(*parts)
        self._stream.write(Piece.of(head), example, Piece.of(struct.pack("<I", mask_crc(example.crc32c))))
        return Place(offset, size, example.crc32c)

    def close(self) -> None:
        """Nothing ends a TFRecord file."""


def mask_crc(crc: int) -> int:
    """Return the masked form of a crc32c: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def encode_example(sample: Sample) -> tuple[bytes, bytes]:
    """Return the serialised Example as what comes before the image bytes and what comes after them."""
    labels: tuple[int, ...] = (sample.label,)
    names: tuple[str, ...] = (sample.class_name,)
    if sample.labels is not None:
        labels, names = sample.labels, sample.class_names
    rest = b"".join(
        (
            _entry(b"image/format", _bytes_feature(sample.image_format.encode())),
            _entry(b"image/height", _int64_feature(sample.height)) if sample.width else b"",
            _entry(b"image/width", _int64_feature(sample.width)) if sample.width else b"",
            _entry(b"image/class/label", _int64_feature(*labels)),
            _entry(b"image/class/text", _bytes_feature(*map(str.encode, names))),
            _entry(b"image/filename", _bytes_feature(sample.path.encode())),
        )
    )
    prefix = _open_entry("image/encoded", len(sample.content))
    features_bytes = len(prefix) + len(sample.content) + len(rest)
    return _FIELD_1 + _varint(features_bytes) + prefix, rest


def encode_fields(sample: Sample) -> list[bytes]:
    """Return the serialised Example of a sample of named fields in pieces, files first, which are not copied."""
    files: list[bytes] = []
    rest: list[bytes] = []
    for field, kind, value, image_format in sample.values:
        if kind == "number":
            with np.errstate(over="ignore"):  # what is beyond float32's range becomes infinite
                single = np.array(value, "<f4").tobytes()
            rest += (_open_entry(field, len(single), _FIELD_2), single)
            rest += (_open_entry(f"{field}/float64", 8), struct.pack("<d", value))
        elif kind == "text":
            content = value.encode()
            rest += (_open_entry(field, len(content)), content)
        elif kind == "class":
            rest.append(_class_entries(field, *value))
        elif kind == "classes":
            places, names = value
            rest.append(_entry(field.encode(), _int64_feature(*places)))
            rest.append(_entry(field.encode() + b"/text", _bytes_feature(*map(str.encode, names))))
        elif kind in ("image", "bytes"):
            files += [_open_entry(field, len(value)), value]
            if image_format:
                rest.append(_entry(field.encode() + b"/format", _bytes_feature(image_format.encode())))
        else:
            rest.append(_entry(field.encode(), _bytes_feature(json.dumps(value, allow_nan=False).encode())))
    path = sample.path.encode()
    rest += (_open_entry("sample/path", len(path)), path)
    if sample.width:
        rest.append(_entry(b"sample/width", _int64_feature(sample.width)))
        rest.append(_entry(b"sample/height", _int64_feature(sample.height)))
    parts = [*files, b"".join(rest)]
    return [_FIELD_1 + _varint(sum(map(len, parts))), *parts]


@functools.lru_cache(_KEPT_ENTRIES)
def _class_entries(field: str, place: int, name: str) -> bytes:
    text = _entry(field.encode() + b"/text", _bytes_feature(name.encode()))
    return _entry(field.encode(), _int64_feature(place)) + text


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


@functools.lru_cache(_KEPT_ENTRIES)
def _open_entry(name: str, size: int, list_tag: bytes = _FIELD_1) -> bytes:
    """Return what stands before the value of a feature of one value: the value itself is never copied.

    Args:
        name: Of the feature.
        size: Bytes of the value.
        list_tag: Of a list of bytes; for packed floats that of their list.
    """
    # From the inside out: BytesList.value, Feature.bytes_list, the entry's value.
    prefix = b""
    for opening in (_FIELD_1, list_tag, _FIELD_2):
        prefix = opening + _varint(len(prefix) + size) + prefix
    prefix = _delimited(_FIELD_1, name.encode()) + prefix
    return _FIELD_1 + _varint(len(prefix) + size) + prefix


def _bytes_feature(*values: bytes) -> bytes:
    return _delimited(_FIELD_1, b"".join(_delimited(_FIELD_1, value) for value in values))


def _int64_feature(*values: int) -> bytes:
    # Packed, as protocol buffers of version 3 write lists of numbers.
    return _delimited(_FIELD_3, _delimited(_FIELD_1, b"".join(map(_varint, values))))
