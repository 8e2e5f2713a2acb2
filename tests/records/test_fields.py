"""Fields of samples: written in both formats, read back exactly, and parsed by a reader that knows nothing of ours."""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import FieldEntry, ShardManifest, SplitEntry
from contracts.errors import DataError
from records.fields import FieldReader
from records.index import NO_LABEL, DamagedSample, read_payload
from records.sample import ChecksumStream, Sample, Value
from records.samples import image_of, open_samples
from records.tar import TarWriter
from records.tfrecord import TFRecordWriter
from records.whole_sample import path_in
from tests.two_versions import write_versions

FORMATS = ("webdataset", "tfrecord")
WRITERS = {"webdataset": TarWriter, "tfrecord": TFRecordWriter}
IMAGE = b"\x89PNG an image" * 50
VALUES: tuple[Value, ...] = (
    Value("note", "text", "two\nlines, ünïcode and \x00"),
    Value("blob", "bytes", b"\x00\xff" * 300),
    Value("picture", "image", IMAGE, "png"),
    Value("mask", "image", b"a mask", "jpeg"),
    Value("label", "class", (2, "cow")),
    Value("kind", "class", (1, "b")),
    Value("tags", "classes", ((0, 300), ("x", "y"))),
    Value("price", "number", 0.1),
    Value("more", "json", {"a": [1, 1.0, None, True, "ü"], "b": {}}),
)
EXPECTED = {value.name: value.value for value in VALUES} | {"label": 2, "kind": 1, "tags": (0, 300)}
VOCABULARIES = {"label": ["ant", "bee", "cow"], "kind": ["a", "b"], "tags": [str(n) for n in range(301)]}


def manifest_of(values: tuple[Value, ...], shard_format: str) -> ShardManifest:
    empty = SplitEntry(first=0, samples=0, source_bytes=0, samples_by_class=[])
    return ShardManifest.model_validate(
        {
            "fingerprint": "f",
            "format_version": 2,
            "format": shard_format,
            "seed": 0,
            "classes": VOCABULARIES["label"],
            "splits": dict.fromkeys(("train", "validation", "test"), empty),
            "shards": [],
            "rejected": [],
            "fields": {
                value.name: FieldEntry(kind=value.kind, place=place, classes=VOCABULARIES.get(value.name, []))
                for place, value in enumerate(values)
            },
        }
    )


def write(values: tuple[Value, ...], shard_format: str) -> bytes:
    """Return the whole sample, as the index points at it."""
    file = io.BytesIO()
    sample = Sample(b"k" * 16, b"", "", 2, "", "cät/1.png", 640, 480, "RGB", values=values)
    place = WRITERS[shard_format](ChecksumStream(file)).write(sample)
    return file.getvalue()[place.offset : place.offset + place.size]


@pytest.mark.parametrize("shard_format", FORMATS)
def test_every_kind_comes_back(shard_format: str) -> None:
    manifest, stored = manifest_of(VALUES, shard_format), write(VALUES, shard_format)
    # A document sorts names, and loaders are sent to other processes.
    manifest = ShardManifest.parse(manifest.to_json(), where="x")
    assert list(manifest.sample_fields) == [value.name for value in VALUES]
    assert (manifest.image_field, manifest.label_field) == ("picture", "label")
    reader = pickle.loads(pickle.dumps(FieldReader(manifest)))
    found = reader.read(stored, 2)
    assert found == EXPECTED and found.keys() == EXPECTED.keys()
    assert {name: type(value) for name, value in found.items()} == {
        **{name: type(value) for name, value in EXPECTED.items()}
    }
    assert [type(one) for one in found["more"]["a"][:2]] == [int, float]
    assert image_of(stored, manifest) == IMAGE and path_in(stored, shard_format) == "cät/1.png"
    for name in EXPECTED:
        assert FieldReader(manifest, [name]).read(stored, 2) == {name: EXPECTED[name]}
    assert FieldReader(manifest, ("mask", "label")).read(stored, 7) == {"mask": b"a mask", "label": 7}


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_numbers_and_text_come_back_bit_for_bit(shard_format: str, number: float, text: str) -> None:
    values = (Value("x", "number", number), Value("t", "text", text))
    found = FieldReader(manifest_of(values, shard_format)).read(write(values, shard_format), NO_LABEL)
    assert struct.pack("<d", found["x"]) == struct.pack("<d", number)
    assert found["t"] == text


def test_readers_of_float32_see_what_is_beyond_its_range_as_infinite() -> None:
    stored = write((Value("x", "number", -1e300),), "tfrecord")
    assert struct.pack("<f", -math.inf) in stored
    assert FieldReader(manifest_of((Value("x", "number", -1e300),), "tfrecord")).read(stored, NO_LABEL) == {"x": -1e300}


@pytest.mark.parametrize("shard_format", FORMATS)
def test_what_is_cut_or_broken_is_damage(shard_format: str) -> None:
    stored = write(VALUES, shard_format)
    reader = FieldReader(manifest_of(VALUES, shard_format))
    # The padding behind the last member holds nothing.
    needed = len(stored.rstrip(b"\0")) if shard_format == "webdataset" else len(stored)
    for end in (*range(0, needed, 97), needed - 1):
        with pytest.raises(DamagedSample, match="cannot be taken apart"):
            reader.read(stored[:end], 2)
    cut_blob = stored[: stored.index(EXPECTED["blob"]) + 99]
    with pytest.raises(DamagedSample):
        FieldReader(manifest_of(VALUES, shard_format), ["blob"]).read(cut_blob, 2)
    for broken in (b"\xff" * 2000, bytes(2048), stored[1:], write(VALUES[:5], shard_format)):
        with pytest.raises(DamagedSample):
            reader.read(broken, 2)


def test_fields_that_are_not_there_are_named() -> None:
    with pytest.raises(DataError) as caught:
        FieldReader(manifest_of(VALUES[:2], "tfrecord"), ["note", "depth"])
    assert caught.value.given == "the shards have no field 'depth'"
    assert caught.value.allowed == "their fields: note (text), blob (bytes)"


@pytest.mark.parametrize("shard_format", FORMATS)
def test_shards_of_images_and_labels_have_two_fields(tmp_path: Path, shard_format: str) -> None:
    for folder in write_versions(tmp_path, shard_format=shard_format):
        uri = storage.normalise(folder)
        manifest = ShardManifest.load(uri)
        assert {name: entry.kind for name, entry in manifest.sample_fields.items()} == {
            "image": "image",
            "label": "class",
        }
        assert manifest.sample_fields["label"].classes == manifest.classes and not manifest.fields
        record = open_samples(manifest, uri)[5]
        stored = read_payload(manifest.shards[int(record["shard"])].uri(uri), record)
        expected = {"image": image_of(stored, manifest), "label": int(record["label"])}
        assert FieldReader(manifest).read(stored, int(record["label"])) == expected
        assert FieldReader(manifest, ["label"]).read(b"", 3) == {"label": 3}
        assert FieldReader(manifest, ["image"]).read(stored, 3) == {"image": expected["image"]}


@pytest.mark.parametrize("shard_format", FORMATS)
def test_lists_of_labels_without_named_fields(shard_format: str) -> None:
    sample = Sample(b"k" * 16, IMAGE, "png", 1, "b", "1.png", 0, 0, "", labels=(1, 300), class_names=("b", "c"))
    file = io.BytesIO()
    place = WRITERS[shard_format](ChecksumStream(file)).write(sample)
    stored = file.getvalue()[place.offset : place.offset + place.size]
    manifest = manifest_of((), shard_format).model_copy(update={"multi_label": True})
    assert manifest.sample_fields["label"].kind == "classes"
    assert FieldReader(manifest).read(stored, NO_LABEL) == {"image": IMAGE, "label": (1, 300)}
    assert FieldReader(manifest, ["label"]).read(stored, NO_LABEL) == {"label": (1, 300)}


def read_message(data: bytes) -> list[tuple[int, bytes]]:
    """Return (field number, content) of a message whose fields are all length-delimited."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    fields, at = [], 0
    while at < len(data):
        tag, at = varint(at)
        assert tag & 7 == 2
        length, at = varint(at)
        assert at + length <= len(data)
        fields.append((tag >> 3, data[at : at + length]))
        at += length
    return fields


def test_a_tf_train_example_has_a_feature_for_each_field() -> None:
    ((number, features),) = read_message(write(VALUES, "tfrecord"))
    assert number == 1
    found: dict[str, Any] = {}
    for _, entry in read_message(features):
        parts = dict(read_message(entry))
        ((kind, values),) = read_message(parts[2])
        found[parts[1].decode()] = kind, [value for _, value in read_message(values)]
    assert found["picture"] == (1, [IMAGE]) and found["picture/format"] == (1, [b"png"])
    assert found["mask"] == (1, [b"a mask"]) and found["blob"] == (1, [EXPECTED["blob"]])
    assert found["note"] == (1, [EXPECTED["note"].encode()])
    assert found["label"] == (3, [b"\x02"]) and found["label/text"] == (1, [b"cow"])
    assert found["tags"] == (3, [b"\x00\xac\x02"]) and found["tags/text"] == (1, [b"x", b"y"])
    assert found["price"] == (2, [struct.pack("<f", 0.1)]) and found["price/float64"] == (1, [struct.pack("<d", 0.1)])
    assert json.loads(found["more"][1][0]) == EXPECTED["more"]
    assert found["sample/path"] == (1, ["cät/1.png".encode()])


def test_a_tar_has_a_member_for_each_file() -> None:
    with tarfile.open(fileobj=io.BytesIO(write(VALUES, "webdataset") + bytes(1024))) as archive:
        found = {member.name.partition(".")[2]: archive.extractfile(member) for member in archive}
        contents = {name: file.read() for name, file in found.items() if file is not None}
    description = json.loads(contents.pop("json"))
    assert contents == {
        "png": IMAGE,
        "mask.jpg": b"a mask",
        "blob.bin": EXPECTED["blob"],
        "note.txt": EXPECTED["note"].encode(),
        "cls": b"2",
    }
    assert description["path"] == "cät/1.png" and description["width"] == 640
    assert description["fields"] == {
        "label": {"index": 2, "name": "cow"},
        "kind": {"index": 1, "name": "b"},
        "tags": {"index": [0, 300], "name": ["x", "y"]},
        "price": 0.1,
        "more": EXPECTED["more"],
    }
