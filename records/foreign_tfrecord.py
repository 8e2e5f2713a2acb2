"""Reading TFRecord files that others wrote: records of tf.train.Example, with the features of TF-Slim or near to them.

The image is the feature image/encoded, else the first one whose bytes are an image. The label is image/class/label or
label, a number or a name; image/class/text names the class of a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c

from contracts.errors import DataError
from records.decode import image_format
from records.foreign_tar import Found
from records.tfrecord import mask_crc, read_varint

_LABELS = ("image/class/label", "label")
_TEXT = "image/class/text"
_IMAGE = "image/encoded"


class _Value(NamedTuple):
    """The first value of a feature."""

    at: int
    """Of the bytes in the record; -1 for a number."""
    value: bytes | int


def scan_tfrecord(stream: BinaryIO, name: str) -> Iterator[Found]:
    """Yield the samples of a TFRecord file.

    Args:
        stream: The file, at its start.
        name: Its name, for errors.

    Raises:
        DataError: A checksum is wrong, it holds something else than tf.train.Example, or a record has no image or no
            label; the offset is named.
    """
    start = 0
    while header := stream.read(12):
        length, data = 0, b""
        if len(header) == 12:
            length, length_crc = struct.unpack("<QI", header)
            if mask_crc(google_crc32c.value(header[:8])) != length_crc:
                raise _damaged(name, start, "its length has a wrong checksum")
            data = stream.read(length)
        footer = stream.read(4)
        if len(footer) < 4:
            raise _damaged(name, start, "the file ends within it")
        if mask_crc(google_crc32c.value(data)) != struct.unpack("<I", footer)[0]:
            raise _damaged(name, start, "its content has a wrong checksum")
        try:
            features = dict(_read_features(data))
        except (IndexError, UnicodeDecodeError):
            raise _damaged(name, start, "it is no tf.train.Example") from None
        yield _to_sample(name, start, features)
        start += 16 + length


def _to_sample(name: str, start: int, features: dict[str, _Value]) -> Found:
    images = [_IMAGE, *(name for name in features if name != _IMAGE)]
    image = next((one for name in images if (one := features.get(name)) and _is_image(one)), None)
    given = next((features[name].value for name in _LABELS if name in features), None)
    text = features.get(_TEXT)
    class_name = text.value.decode("utf-8", "replace") if text and isinstance(text.value, bytes) else None
    label = given.decode("utf-8", "replace") if isinstance(given, bytes) else class_name if given is None else given
    if image is None or label is None:
        raise DataError(
            f"{name}, record at {start}: no {'image' if image is None else 'label'} among "
            f"{', '.join(sorted(features))}",
            allowed=f"{_IMAGE} and {' or '.join(_LABELS)}",
            todo="write these records with the names of TF-Slim, or shard the source with `shardline shard`",
        )
    assert isinstance(image.value, bytes)
    # Behind the length and its checksum comes the data.
    return Found(f"record {start}", start + 12 + image.at, image.value, label, class_name)


def _is_image(value: _Value) -> bool:
    return isinstance(value.value, bytes) and image_format(value.value[:16]) is not None


def _read_features(data: bytes) -> Iterator[tuple[str, _Value]]:
    """Yield name and first value of each feature of a serialised tf.train.Example that has one."""
    for number, at, end in _read_fields(data, 0, len(data)):
        if number != 1:
            continue
        for _, entry, entry_end in _read_fields(data, at, end):
            parts = {number: (start, stop) for number, start, stop in _read_fields(data, entry, entry_end)}
            if 1 not in parts or 2 not in parts:
                raise IndexError
            name = data[slice(*parts[1])].decode()
            for kind, start, stop in _read_fields(data, *parts[2]):
                if (value := _first_value(data, kind, start, stop)) is not None:
                    yield name, value


def _first_value(data: bytes, kind: int, start: int, stop: int) -> _Value | None:
    """Return the first value of a BytesList (1) or an Int64List (3); other lists hold nothing for us."""
    if start == stop or kind not in (1, 3):
        return None
    tag, at = read_varint(data, start)
    if tag & 7 == 0:  # a number by itself: a list that is not packed
        return _Value(-1, _read_int64(data, at))
    length, at = read_varint(data, at)
    if kind == 3:
        return _Value(-1, _read_int64(data, at)) if length else None
    if at + length > stop:
        raise IndexError
    return _Value(at, data[at : at + length])


def _read_int64(data: bytes, at: int) -> int:
    """Return a number of an Int64List: a varint of its 64 bits in two's complement."""
    value = read_varint(data, at)[0] & (1 << 64) - 1
    return value - (value >> 63 << 64)


def _read_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the fields of a message; all of ours are length-delimited."""
    while at < end:
        tag, at = read_varint(data, at)
        if tag & 7 != 2:
            raise IndexError
        length, at = read_varint(data, at)
        if at + length > end:
            raise IndexError
        yield tag >> 3, at, at + length
        at += length


def _damaged(name: str, start: int, what: str) -> DataError:
    return DataError(
        f"{name}, record at {start}: {what}",
        allowed="whole TFRecord files of tf.train.Example, not compressed",
        todo="copy or write the file again; compressed files must be unpacked",
    )
