"""TFRecord shards: records of tf.train.Example with the feature names of TF-Slim.

With named fields a feature has the name of its field: an image, bytes, text and json a list of one bytes value, a
class or classes their int64 indices, a number its float32 value. Beside them are NAME/format of an image, NAME/text
(names) of classes, NAME/float64 (little-endian, in one bytes value: float32 alone would lose digits), and of the whole
sample sample/path, sample/width and sample/height (of the first image).

A record is its length (8 bytes, little-endian), the masked crc32c of these, the Example, and its masked crc32c:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from contracts.errors import DataError
from records.decode import image_format
from records.sample import MAX_SAMPLE_BYTES, ForeignSample, Framed, Sample

SUFFIX = ".tfrecord"
END = b""
"""Nothing ends a TFRecord file."""

IMAGE_FEATURE = "image/encoded"
_LABELS = ("image/class/label", "label")
_TEXT = "image/class/text"
_HEAD_BYTES, _CRC_BYTES = 12, 4


# tensorflow/core/example/example.proto and feature.proto, as a descriptor.
_EXAMPLE_PROTO = """
    name: "shardline_example.proto" package: "tensorflow" syntax: "proto3"
    message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
    message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
    message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
    message_type {
      name: "Feature"
      oneof_decl { name: "kind" }
      field { name: "bytes_list" number: 1 type_name: "BytesList" type: TYPE_MESSAGE oneof_index: 0 }
      field { name: "float_list" number: 2 type_name: "FloatList" type: TYPE_MESSAGE oneof_index: 0 }
      field { name: "int64_list" number: 3 type_name: "Int64List" type: TYPE_MESSAGE oneof_index: 0 }
    }
    message_type {
      name: "Features"
      nested_type {
        name: "FeatureEntry"
        options { map_entry: true }
        field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
        field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Feature" }
      }
      field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "FeatureEntry" }
    }
    message_type {
      name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" }
    }
"""
# A pool of its own: TensorFlow describes the same names in the common one.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto()))
Example: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("tensorflow.Example"))
"""The class of tf.train.Example."""


def frame(sample: Sample) -> Framed:
    """Return the record of a sample; its body is the tf.train.Example."""
    example = Example()
    if sample.values:
        _add_fields(example.features.feature, sample)
    else:
        _add_image(example.features.feature, sample)
    body = example.SerializeToString(deterministic=True)
    length = struct.pack("<Q", len(body))
    return Framed(length + _masked_crc(length), body, _masked_crc(body))


def first_value(example: Any, name: str) -> Any:
    """Return the first value of a feature; None where there is none."""
    feature = example.features.feature
    kind = feature[name].WhichOneof("kind") if name in feature else None
    values = getattr(feature[name], kind).value if kind else ()
    return values[0] if values else None


def find_image(example: Any) -> bytes | None:
    """Return the image file of an Example: the feature image/encoded, else the first by name that is an image."""
    for name in (IMAGE_FEATURE, *sorted(example.features.feature)):
        value = first_value(example, name)
        if isinstance(value, bytes) and image_format(value):
            return value
    return None


def scan(stream: BinaryIO, name: str) -> Iterator[ForeignSample]:
    """Yield the samples of a TFRecord file that another program wrote.

    The label is the feature image/class/label or label, a number or a name; image/class/text names the class of a
    number.

    Args:
        stream: The file, at its start.
        name: Its name, for errors.

    Raises:
        DataError: A checksum is wrong, it holds something else than tf.train.Example, or a record has no image or no
            label, or 2 GiB or more; the offset is named.
    """
    start = 0
    while head := stream.read(_HEAD_BYTES):
        length = struct.unpack("<Q", head[:8])[0] if len(head) == _HEAD_BYTES else 0
        if len(head) == _HEAD_BYTES and _masked_crc(head[:8]) != head[8:]:
            raise _damaged(name, start, "its length has a wrong checksum")
        if length > MAX_SAMPLE_BYTES:
            raise _damaged(name, start, "it has 2 GiB or more")
        body = stream.read(length)
        tail = stream.read(_CRC_BYTES)
        if len(tail) < _CRC_BYTES:
            raise _damaged(name, start, "the file ends within it")
        if _masked_crc(body) != tail:
            raise _damaged(name, start, "its content has a wrong checksum")
        yield _read_foreign(name, start, body)
        start += _HEAD_BYTES + length + _CRC_BYTES


def _read_foreign(name: str, start: int, body: bytes) -> ForeignSample:
    try:
        example = Example.FromString(body)
    except DecodeError:
        raise _damaged(name, start, "it is no tf.train.Example") from None
    image = find_image(example)
    labels = (first_value(example, feature) for feature in _LABELS)
    stored = next((value for value in labels if isinstance(value, int | bytes)), None)
    text = first_value(example, _TEXT)
    class_name = text.decode("utf-8", "replace") if isinstance(text, bytes) else None
    label = stored.decode("utf-8", "replace") if isinstance(stored, bytes) else class_name if stored is None else stored
    if image is None or label is None:
        raise DataError(
            f"{name}, record at {start}: no {'image' if image is None else 'label'} among "
            f"{', '.join(sorted(example.features.feature))}",
            allowed=f"{IMAGE_FEATURE} and {' or '.join(_LABELS)}",
            todo="write these records with the names of TF-Slim, or shard the source with `shardline shard`",
        )
    return ForeignSample(f"record {start}", start + _HEAD_BYTES, body, image, label, class_name)


def _damaged(name: str, start: int, reason: str) -> DataError:
    return DataError(
        f"{name}, record at {start}: {reason}",
        allowed="whole TFRecord files of tf.train.Example, not compressed",
        todo="copy or write the file again; compressed files must be unpacked",
    )


def _masked_crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _add_image(feature: Any, sample: Sample) -> None:
    labels = (sample.label,) if sample.labels is None else sample.labels
    names = (sample.class_name,) if sample.labels is None else sample.class_names
    feature[IMAGE_FEATURE].bytes_list.value.append(sample.content)
    feature["image/format"].bytes_list.value.append(sample.image_format.encode())
    if sample.width:
        feature["image/height"].int64_list.value.append(sample.height)
        feature["image/width"].int64_list.value.append(sample.width)
    feature["image/class/label"].int64_list.value.extend(labels)
    feature[_TEXT].bytes_list.value.extend(name.encode() for name in names)
    feature["image/filename"].bytes_list.value.append(sample.path.encode())


def _add_fields(feature: Any, sample: Sample) -> None:
    for name, kind, value, format_of_image in sample.values:
        if kind == "number":
            # Beyond the range of float32 it becomes infinite.
            feature[name].float_list.value.append(value)
            feature[f"{name}/float64"].bytes_list.value.append(struct.pack("<d", value))
        elif kind in ("class", "classes"):
            places, names = value if kind == "classes" else ([value[0]], [value[1]])
            feature[name].int64_list.value.extend(places)
            feature[f"{name}/text"].bytes_list.value.extend(one.encode() for one in names)
        elif kind in ("image", "bytes"):
            feature[name].bytes_list.value.append(value)
            if format_of_image:
                feature[f"{name}/format"].bytes_list.value.append(format_of_image.encode())
        else:
            text = value if kind == "text" else json.dumps(value, allow_nan=False)
            feature[name].bytes_list.value.append(text.encode())
    feature["sample/path"].bytes_list.value.append(sample.path.encode())
    if sample.width:
        feature["sample/width"].int64_list.value.append(sample.width)
        feature["sample/height"].int64_list.value.append(sample.height)
