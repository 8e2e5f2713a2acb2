"""Fields of many samples at once, as columns: what records/fields.py takes out of one, by numpy over all of them.

Rows of a table are small: taken apart one by one, a row costs 50 us. Samples of one shard have their features in one
order, so the bytes before a value are alike in all of them, or differ in lengths alone. Only what is as the shard stage
writes it is taken; everything else is left to the way of single samples, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from contracts.artifacts import ShardManifest
from contracts.config import FieldKind
from records.index import DamagedSample, Index
from records.tfrecord import read_varint
from records.whole_sample import iterate_features

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Columns = dict[str, Any]
"""Values of fields by name, in the order of the samples. number: [B] float64; numbers: [B, n] float64; category, text:
list of B bytes objects, UTF-8; class: [B] int64."""

# Kinds that come as columns, with the end of the name of the feature that holds their value.
_SUFFIXES: dict[FieldKind, bytes] = {"number": b"/float64", "numbers": b"/float64", "category": b"", "text": b""}
# Tags of length-delimited fields 1 and 2.
_FIELD_1, _FIELD_2 = 0x0A, 0x12
# Longer values are copied one by one, which takes no longer then.
_SHORT_BYTES = 1024
# Bytes of the longest varint that is read: a sample has less than 2 GiB.
_VARINT_BYTES = 5


class _Otherwise(Exception):
    """The samples are not alike in what is asked for."""


@dataclass(frozen=True)
class Stored:
    """The bytes of at least one sample."""

    content: bytes
    starts: Integers
    """[B] where each whole sample begins."""
    sizes: Integers
    """[B] bytes of each."""

    @classmethod
    def join(cls, samples: Sequence[bytes]) -> Stored:
        """Return samples that lie apart as one."""
        sizes = np.fromiter(map(len, samples), np.int64, len(samples))
        return cls(b"".join(samples), sizes.cumsum() - sizes, sizes)

    def is_as(self, records: Index) -> bool:
        """Whether length and crc32c of each sample are those of its record in the index."""
        if (self.sizes != records["size"]).any():
            return False
        value, content = google_crc32c.value, self.content
        places = zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        found = np.array([value(content[first:end]) for first, end in places], np.int64)
        return bool((found == records["crc32c"]).all())


class ColumnReader:
    """Takes fields of many samples out of their stored bytes.

    Args:
        manifest: Of the shards; records of tf.train.Example with named fields.
        wanted: Names of the fields.
    """

    def __init__(self, manifest: ShardManifest, wanted: Sequence[str]) -> None:
        fields = manifest.sample_fields
        label = manifest.label_field
        self._label = label if label is not None and label in wanted and fields[label].kind == "class" else None
        kinds = {name: fields[name].kind for name in wanted if name != self._label}
        self.possible = (
            manifest.format == "tfrecord"
            and bool(manifest.fields)
            and manifest.whole_samples
            and all(kind in _SUFFIXES for kind in kinds.values())
        )
        """Whether such fields of such shards can come as columns."""
        self._kinds = {name.encode() + _SUFFIXES[kind]: (name, kind) for name, kind in kinds.items() if self.possible}

    def read(self, stored: Stored, labels: npt.NDArray[np.int32]) -> Columns | None:
        """Return the wanted fields of samples; None where they are to be read one by one.

        Args:
            stored: The samples, compared with the index.
            labels: Of the samples, from the index.
        """
        found: Columns = {} if self._label is None else {self._label: labels.astype(np.int64)}
        try:
            self._read(stored, found)
        except (_Otherwise, DamagedSample, IndexError, ValueError):
            return None
        return found

    def _read(self, stored: Stored, found: Columns) -> None:
        remaining = set(self._kinds)
        content, ends = stored.content, stored.starts + stored.sizes
        taken = np.frombuffer(content, np.uint8)
        _, at = _lengths(taken, _tags(taken, stored.starts, _FIELD_1))
        for name, _ in iterate_features(content[stored.starts[0] : ends[0]]):
            if not remaining:
                break
            if name not in remaining:
                _require_name(taken, at, name)
                length, begin = _lengths(taken, _tags(taken, at, _FIELD_1))
                at = begin + length
                continue
            remaining.remove(name)
            begin, length, at = _value(taken, at, name)
            if (at > ends).any():
                raise _Otherwise
            field, kind = self._kinds[name]
            if kind in ("number", "numbers"):
                found[field] = _doubles(taken, begin, length, one=kind == "number")
            else:
                places = zip(begin.tolist(), (begin + length).tolist(), strict=True)
                found[field] = [content[first:end] for first, end in places]
        if remaining:
            raise _Otherwise


def _value(taken: Bytes, at: Integers, name: bytes) -> tuple[Integers, Integers, Integers]:
    """Return begin and length of the value of bytes of a feature, and the place behind the feature, of each sample."""
    header, length, size = _first_header(taken, int(at[0]))
    block = taken[at[:, None] + np.arange(header)]
    if (block == block[0]).all():
        # All of one size, as numbers are: then all that says so is alike.
        return at + header, np.full(len(at), length), at + size
    _require_name(taken, at, name)
    entry, inside = _lengths(taken, _tags(taken, at, _FIELD_1))
    end = inside + entry
    key, inside = _lengths(taken, _tags(taken, inside, _FIELD_1))
    for tag in (_FIELD_2, _FIELD_1, _FIELD_1):
        own, inside = _lengths(taken, _tags(taken, inside + key, tag))
        key = np.zeros_like(own)
    if (inside + own != end).any():
        raise _Otherwise
    return inside, own, end


def _first_header(taken: Bytes, start: int) -> tuple[int, int, int]:
    """Return the bytes before the value of a feature, those of the value, and those of all, of one sample."""
    content = taken[start : start + 512].tobytes()
    entry, at = _enter(content, 0, _FIELD_1)
    end = at + entry
    key, at = _enter(content, at, _FIELD_1)
    at += key
    length = 0
    for tag in (_FIELD_2, _FIELD_1, _FIELD_1):
        length, at = _enter(content, at, tag)
    if at + length != end:
        raise _Otherwise
    return at, length, end


def _enter(content: bytes, at: int, tag: int) -> tuple[int, int]:
    if content[at] != tag:
        raise _Otherwise
    return read_varint(content, at + 1)


def _tags(taken: Bytes, at: Integers, tag: int) -> Integers:
    """Return the places behind a tag, which all samples must have there."""
    if (taken[at] != tag).any():
        raise _Otherwise
    return at + 1


def _lengths(taken: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the varint at a place of each sample, and the place behind it."""
    byte = taken[at]
    if (byte < 0x80).all():
        return byte.astype(np.int64), at + 1
    values, behind, going = np.zeros_like(at), at.copy(), np.ones(len(at), bool)
    for number in range(_VARINT_BYTES):
        byte = taken[behind]
        values += np.where(going, (byte & 0x7F).astype(np.int64) << (7 * number), 0)
        behind += going
        going &= byte >= 0x80
        if not going.any():
            return values, behind
    raise _Otherwise


def _require_name(taken: Bytes, at: Integers, name: bytes) -> None:
    """Refuse samples whose feature at a place has another name."""
    _, inside = _lengths(taken, _tags(taken, at, _FIELD_1))
    length, inside = _lengths(taken, _tags(taken, inside, _FIELD_1))
    if (length != len(name)).any():
        raise _Otherwise
    found = taken[inside[:, None] + np.arange(len(name))]
    if (found != np.frombuffer(name, np.uint8)).any():
        raise _Otherwise


def _doubles(taken: Bytes, begin: Integers, length: Integers, *, one: bool) -> npt.NDArray[np.float64]:
    """Return packed little-endian float64: [B] or [B, n]."""
    size = int(length[0])
    if size % 8 or (length != size).any() or (one and size != 8):
        raise _Otherwise
    if size <= _SHORT_BYTES:
        chosen = np.ascontiguousarray(taken[begin[:, None] + np.arange(size)])
    else:
        # The index of a byte takes eight.
        chosen = np.empty((len(begin), size), np.uint8)
        for row, first in enumerate(begin.tolist()):
            chosen[row] = taken[first : first + size]
    values = chosen.view("<f8")
    return values[:, 0] if one else values
