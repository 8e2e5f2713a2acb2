"""Read the fields of a sample from its stored bytes: the members of a tar, or a tf.train.Example.

Shards indexed by `shardline data adopt` have an image, and a label in the index. The checksum of the bytes is already
verified, so bytes that do not parse are an error of the shard.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from contracts.artifacts import ShardManifest
from contracts.config import FieldKind
from contracts.errors import DataError
from records import tar
from records.index import DamagedSample
from records.tfrecord import Example, find_image, first_value

# Errors of json, struct, protobuf and our own checks for bytes that are no sample.
_UNREADABLE = (
    *(AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError),
    *(struct.error, DecodeError),
)
_PATHS = ("image/filename", "sample/path")


class FieldReader:
    """Reads fields of samples from their stored bytes.

    Args:
        manifest: Of the shards.
        names: Names of the fields to read; None: all.

    Raises:
        DataError: The samples have no such field.
    """

    def __init__(self, manifest: ShardManifest, names: Sequence[str] | None = None) -> None:
        fields = manifest.sample_fields
        names = tuple(fields if names is None else names)
        if missing := [name for name in names if name not in fields]:
            raise DataError(
                f"the shards have no field {', '.join(map(repr, missing))}",
                allowed="their fields: " + ", ".join(f"{name} ({entry.kind})" for name, entry in fields.items()),
                todo="name these, or map the missing ones in sharding.fields and shard again",
            )
        self._format = manifest.format
        self._has_names = bool(manifest.fields)
        # The index holds the label of samples that have one.
        label = manifest.label_field
        self._label = label if label in names and fields[label].kind == "class" else None
        self._image = manifest.image_field if manifest.image_field in names else None
        self._remaining: dict[str, FieldKind] = {
            name: fields[name].kind for name in names if name not in (self._label, self._image)
        }

    def read(self, stored: bytes, label: int) -> dict[str, Any]:
        """Return the value of each requested field by name.

        An image and bytes are the file (bytes), text str, a class int, classes tuple[int, ...], a number float, json
        the value. Classes are places in the field's list in the manifest, ascending.

        Args:
            stored: The bytes of the sample.
            label: Its label in the index.

        Raises:
            DamagedSample: A field is missing or unreadable.
        """
        values: dict[str, Any] = {} if self._label is None else {self._label: label}
        try:
            if self._format == "webdataset":
                self._read_members(stored, values)
            else:
                self._read_example(stored, values)
        except _UNREADABLE as error:
            raise DamagedSample(
                f"a sample cannot be parsed ({error})",
                allowed="samples as the shard stage wrote them",
                todo="run the shard stage again with --fresh",
            ) from None
        return values

    def _read_members(self, stored: bytes, values: dict[str, Any]) -> None:
        if self._image is not None:
            values[self._image] = _require(tar.find_image(stored))
        if not self._remaining:
            return
        files: dict[str, bytes] = {}
        described: dict[str, Any] = {}
        for extension, begin, end in tar.members(stored):
            name, dot, _ = extension.partition(".")
            if extension == "json":
                described = json.loads(stored[begin:end])
            elif dot and name in self._remaining:
                files[name] = stored[begin:end]
        for name, kind in self._remaining.items():
            if kind in ("image", "bytes"):
                values[name] = files[name]
            elif kind == "text":
                values[name] = files[name].decode()
            elif not self._has_names:
                values[name] = tuple(described["labels"])
            elif kind == "class":
                values[name] = described["fields"][name]["index"]
            elif kind == "classes":
                values[name] = tuple(described["fields"][name]["index"])
            else:
                value = described["fields"][name]
                values[name] = float(value) if kind == "number" else value

    def _read_example(self, stored: bytes, values: dict[str, Any]) -> None:
        if self._image is None and not self._remaining:
            return
        example = Example.FromString(stored)
        if self._image is not None:
            values[self._image] = _require(
                first_value(example, self._image) if self._has_names else find_image(example)
            )
        feature = example.features.feature
        for name, kind in self._remaining.items():
            key = name if self._has_names else "image/class/label"
            if kind == "classes":
                values[name] = tuple(feature[key].int64_list.value) if key in feature else _require(None)
            elif kind == "number":
                (values[name],) = struct.unpack("<d", first_value(example, f"{name}/float64"))
            else:
                value = _require(first_value(example, key))
                values[name] = value.decode() if kind == "text" else json.loads(value) if kind == "json" else value


def image_of(stored: bytes, manifest: ShardManifest) -> bytes:
    """Return the first image file of a sample.

    Args:
        stored: The bytes of the sample.
        manifest: Manifest of the shards, which have a field of kind image.

    Raises:
        DamagedSample: The sample has no image.
    """
    assert manifest.image_field is not None
    image: bytes = FieldReader(manifest, [manifest.image_field]).read(stored, 0)[manifest.image_field]
    return image


def path_in(stored: bytes, shard_format: str) -> str | None:
    """Return the path of a sample in its source; None if it is missing or unreadable.

    Args:
        stored: The bytes of the sample.
        shard_format: webdataset or tfrecord.
    """
    try:
        if shard_format == "webdataset":
            texts = [stored[begin:end] for extension, begin, end in tar.members(stored) if extension == "json"]
            path = json.loads(texts[0])["path"]
        else:
            example = Example.FromString(stored)
            path = next(value for name in _PATHS if (value := first_value(example, name)) is not None).decode()
    except (*_UNREADABLE, StopIteration):
        return None
    return path if isinstance(path, str) else None


def _require(value: Any) -> Any:
    if value is None:
        raise LookupError("a field is missing")
    return value
