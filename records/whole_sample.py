"""A whole sample, as index version 2 points at it: its image and its description, taken out of its bytes.

A sample of a tar is its members from the first header to the last padding; one of a TFRecord is a serialised
tf.train.Example. Whoever reads has compared the bytes with their checksum, so what does not parse is wrong in the
shard. The image is found in a few microseconds, by the few fields that are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from records.index import DamagedSample
from records.tar import BLOCK_BYTES
from records.tfrecord import read_varint

# The members beside the image; every other one is the image, whose extension is that of its format.
_NO_IMAGES = frozenset((b"cls", b"json", b"txt"))
_NAME_BYTES, _SIZE_AT, _SIZE_END = 100, 124, 135
IMAGE_FEATURE = b"image/encoded"
# Of samples of an image and a label, and of those of named fields.
_PATHS = (b"image/filename", b"sample/path")
# Tags of length-delimited fields 1 and 2.
_FIELD_1, _FIELD_2 = 0x0A, 0x12


class Member(NamedTuple):
    """What the header of a member of a tar says."""

    name: str
    size: int


def extract_image(sample: bytes, shard_format: str, feature: bytes = IMAGE_FEATURE) -> bytes:
    """Return the image file in a sample: of several, the first.

    Args:
        sample: All bytes of the sample, as the index says.
        shard_format: webdataset or tfrecord.
        feature: Name of its feature in a tf.train.Example: with named fields, that of the field.

    Raises:
        DamagedSample: There is none in it.
    """
    try:
        begin, end = _find_in_tar(sample) if shard_format == "webdataset" else _find_feature(sample, feature)
    except (IndexError, ValueError) as error:
        raise unreadable(error) from None
    if end > len(sample):
        raise unreadable(ValueError("it ends within the image"))
    return sample[begin:end]


def iterate_members(sample: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield extension, begin and end of the content of each member of a sample of a tar.

    Raises:
        ValueError: A header is none, or the sample ends within a member.
    """
    at = 0
    while at < len(sample):
        name = sample[at : at + _NAME_BYTES].partition(b"\0")[0]
        size = int(sample[at + _SIZE_AT : at + _SIZE_END], 8)
        at += BLOCK_BYTES
        end = at + size
        if end > len(sample):
            raise ValueError("it ends within a member")
        yield name.partition(b".")[2], at, end
        at = end + -size % BLOCK_BYTES


def iterate_features(sample: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield name and begin of the list of values of each feature of a tf.train.Example.

    Raises:
        IndexError, ValueError: It is no such message, or ends within one.
    """
    end, at = _enter(sample, 0, _FIELD_1)
    if end > len(sample):
        raise ValueError("it ends within a feature")
    while at < end:
        entry_end, at = _enter(sample, at, _FIELD_1)
        key_end, at = _enter(sample, at, _FIELD_1)
        name = sample[at:key_end]
        _, at = _enter(sample, key_end, _FIELD_2)
        # Its tag tells bytes, floats and integers apart.
        _, at = _enter(sample, at, sample[at])
        yield name, at
        at = entry_end


def bytes_value(sample: bytes, at: int) -> bytes:
    """Return the first value of a list of bytes that begins at a place."""
    end, at = _enter(sample, at, _FIELD_1)
    if end > len(sample):
        raise ValueError("it ends within a value")
    return sample[at:end]


def integer_values(sample: bytes, at: int) -> tuple[int, ...]:
    """Return the values of a packed list of integers that begins at a place."""
    end, at = _enter(sample, at, _FIELD_1)
    values = []
    while at < end:
        value, at = read_varint(sample, at)
        values.append(value)
    return tuple(values)


def path_in(sample: bytes, shard_format: str) -> str | None:
    """Return the path of a sample in its source, None where it does not say it or cannot be read."""
    try:
        if shard_format != "webdataset":
            begin, end = _find_feature(sample, *_PATHS)
            return sample[begin:end].decode()
        at = 0
        while True:
            member = read_member(sample[at : at + BLOCK_BYTES])
            at += BLOCK_BYTES
            if member.name.endswith(".json"):
                found = json.loads(sample[at : at + member.size])
                path = found.get("path") if isinstance(found, dict) else None
                return path if isinstance(path, str) else None
            at += member.size + -member.size % BLOCK_BYTES
    except (IndexError, ValueError):
        return None


def read_member(header: bytes) -> Member:
    """Return what the header of a member says; ValueError where it is none."""
    return Member(header[:_NAME_BYTES].partition(b"\0")[0].decode(), int(header[_SIZE_AT:_SIZE_END], 8))


def _find_in_tar(sample: bytes) -> tuple[int, int]:
    at = 0
    while True:
        # The extension starts at the first dot: a key has none.
        name = sample[at : at + _NAME_BYTES].partition(b"\0")[0]
        size = int(sample[at + _SIZE_AT : at + _SIZE_END], 8)
        at += BLOCK_BYTES
        if name.partition(b".")[2] not in _NO_IMAGES:
            return at, at + size
        at += size + -size % BLOCK_BYTES


def _find_feature(sample: bytes, *wanted: bytes) -> tuple[int, int]:
    """Return where the first value of a feature of bytes, of one of these names, begins and ends."""
    end, at = _enter(sample, 0, _FIELD_1)
    while at < end:
        entry_end, at = _enter(sample, at, _FIELD_1)
        key_end, at = _enter(sample, at, _FIELD_1)
        if sample[at:key_end] in wanted:
            _, at = _enter(sample, key_end, _FIELD_2)
            _, at = _enter(sample, at, _FIELD_1)
            value_end, at = _enter(sample, at, _FIELD_1)
            return at, value_end
        at = entry_end
    raise ValueError(f"it has no {wanted[0].decode()}")


def _enter(sample: bytes, at: int, tag: int) -> tuple[int, int]:
    """Return the end and the beginning of the content of a field, which must be the expected one."""
    if sample[at] != tag:
        raise ValueError(f"field {sample[at]:#x} at {at}")
    length, at = read_varint(sample, at + 1)
    return at + length, at


def unreadable(error: Exception) -> DamagedSample:
    """Return the error of a sample that does not parse."""
    return DamagedSample(
        f"a sample cannot be taken apart ({error})",
        allowed="samples as the shard stage wrote them",
        todo="run the shard stage again with --fresh",
    )
