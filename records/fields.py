"""The fields of a sample, taken out of the bytes that are stored for it; no Beam, no torch.

What a shard holds for each kind is written by records/tar.py and records/tfrecord.py. Whoever reads has compared the
bytes with their checksum (records.index.read_payload), so what does not parse is wrong in the shard.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from contracts.artifacts import ShardManifest
from contracts.config import FieldKind
from contracts.errors import DataError
from records.index import DamagedSample
from records.whole_sample import (
    IMAGE_FEATURE,
    bytes_value,
    extract_image,
    integer_values,
    iterate_features,
    iterate_members,
    unreadable,
)


class FieldReader:
    """Takes fields of samples out of their stored bytes.

    Args:
        manifest: Of the shards.
        wanted: Names of the fields; None: all.

    Raises:
        DataError: The samples have no such field, or the index of version 1 does not say where it is.
    """

    def __init__(self, manifest: ShardManifest, wanted: Sequence[str] | None = None) -> None:
        fields = manifest.sample_fields
        wanted = tuple(fields if wanted is None else wanted)
        if missing := [name for name in wanted if name not in fields]:
            raise DataError(
                f"the shards have no field {', '.join(map(repr, missing))}",
                allowed="their fields: " + ", ".join(f"{name} ({entry.kind})" for name, entry in fields.items()),
                todo="name these, or map the missing ones in sharding.fields and shard again",
            )
        self._format = manifest.format
        self._is_whole = manifest.whole_samples
        self._is_mapped = bool(manifest.fields)
        self._image_feature = (manifest.image_field or "").encode() if self._is_mapped else IMAGE_FEATURE
        self._first_image = next((name for name in wanted if name == manifest.image_field), None)
        # The index holds the label of samples that have one.
        label = manifest.label_field
        self._label = label if label in wanted and fields[label].kind == "class" else None
        self._stored: dict[str, FieldKind] = {name: fields[name].kind for name in wanted if name != self._label}
        if not self._is_whole and self._stored.keys() - {self._first_image}:
            raise DataError(
                "index version 1 holds no lists of labels",
                allowed="shards with one label for each image, or of this version",
                todo="shard the source again",
            )
        # By the start of its name, what a member of its own holds.
        self._members = {
            name.encode(): (name, kind) for name, kind in self._stored.items() if kind in ("image", "bytes", "text")
        }
        self._described = {name: kind for name, kind in self._stored.items() if name.encode() not in self._members}
        self._members.pop((self._first_image or "").encode(), None)
        self._is_image_alone = not self._stored.keys() - {self._first_image}

    def read(self, stored: bytes, label: int) -> dict[str, Any]:
        """Return the value of each wanted field by name.

        An image and bytes are the file (bytes), text str, a class int, classes tuple[int, ...], a number float, json
        the value. Classes are places in the field's list in the manifest, ascending.

        Args:
            stored: What the index points at: the whole sample, or in version 1 of the index the image alone.
            label: Of the sample, from the index.

        Raises:
            DamagedSample: A field is not in it, or cannot be read.
        """
        found: dict[str, Any] = {}
        if self._label is not None:
            found[self._label] = label
        if self._is_image_alone:
            # The way of images with labels: it takes no other field apart.
            if self._first_image is not None:
                found[self._first_image] = (
                    extract_image(stored, self._format, self._image_feature) if self._is_whole else stored
                )
            return found
        try:
            if self._format == "webdataset":
                self._read_members(stored, found)
            elif self._is_mapped:
                self._read_features(stored, found)
            else:
                self._read_lists(stored, found)
        except DamagedSample:
            raise
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise unreadable(error) from None
        if missing := self._stored.keys() - found.keys():
            raise unreadable(ValueError(f"it has no {', '.join(sorted(missing))}"))
        return found

    def _read_members(self, sample: bytes, found: dict[str, Any]) -> None:
        """Take wanted fields out of the members of a tar."""
        remaining = len(self._stored)
        for extension, begin, end in iterate_members(sample):
            field, dot, _ = extension.partition(b".")
            if dot:
                if field not in self._members:
                    continue
                name, kind = self._members[field]
                content = sample[begin:end]
                found[name] = content.decode() if kind == "text" else content
                remaining -= 1
            elif extension == b"json":
                if self._described:
                    self._read_description(sample[begin:end], found)
                    remaining -= len(self._described)
            elif extension != b"cls" and self._first_image is not None:
                found[self._first_image] = sample[begin:end]
                remaining -= 1
            if not remaining:
                return

    def _read_description(self, content: bytes, found: dict[str, Any]) -> None:
        description = json.loads(content)
        if not self._is_mapped:
            (name,) = self._described
            found[name] = tuple(description["labels"])
            return
        values = description["fields"]
        for name, kind in self._described.items():
            value = values[name]
            if kind == "class":
                found[name] = value["index"]
            elif kind == "classes":
                found[name] = tuple(value["index"])
            elif kind == "number":
                found[name] = float(value)
            else:
                found[name] = value

    def _read_features(self, sample: bytes, found: dict[str, Any]) -> None:
        """Take wanted fields out of a tf.train.Example."""
        remaining = len(self._stored)
        for feature, at in iterate_features(sample):
            field, _, suffix = feature.partition(b"/")
            name = field.decode()
            kind = self._stored.get(name)
            # What stands behind a slash is for other readers, but for the digits that float32 loses.
            if kind is None or suffix != (b"float64" if kind == "number" else b""):
                continue
            if kind in ("class", "classes"):
                values = integer_values(sample, at)
                found[name] = values if kind == "classes" else values[0]
            else:
                content = bytes_value(sample, at)
                if kind == "text":
                    found[name] = content.decode()
                elif kind == "json":
                    found[name] = json.loads(content)
                elif kind == "number":
                    (found[name],) = struct.unpack("<d", content)
                else:
                    found[name] = content
            remaining -= 1
            if not remaining:
                return

    def _read_lists(self, sample: bytes, found: dict[str, Any]) -> None:
        """Take the image and its list of labels out of a tf.train.Example that has no named fields."""
        for feature, at in iterate_features(sample):
            if feature == IMAGE_FEATURE and self._first_image is not None:
                found[self._first_image] = bytes_value(sample, at)
            elif feature == b"image/class/label":
                found["label"] = integer_values(sample, at)
