"""Fields of samples: written in both formats, read back exactly, and seen by readers that know nothing of ours."""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
import tarfile

import pytest

from contracts.artifacts import FieldEntry, ShardManifest, Shards, SplitEntry
from contracts.errors import DataError
from records.fields import FieldReader, image_of, path_in
from records.index import NO_LABEL, DamagedSample
from records.sample import Sample, Value
from records.tar import END
from records.tfrecord import Example
from tests.records.small_shards import FORMATS, frame, make_sample

IMAGE = b"\x89PNG\r\n\x1a\n an image" * 50
VALUES: tuple[Value, ...] = (
    Value("note", "text", "two\nlines, ünïcode and \x00"),
    Value("blob", "bytes", b"\x00\xff" * 300),
    Value("picture", "image", IMAGE, "png"),
    Value("mask", "image", b"a mask", "jpeg"),
    Value("label", "class", (2, "cow")),
    Value("kind", "class", (1, "b")),
    Value("tags", "classes", ((0, 300), ("x", "y"))),
    Value("none", "classes", ((), ())),
    Value("price", "number", 0.1),
    Value("more", "json", {"a": [1, 1.0, None, True, "ü"], "b": {}}),
    # Names of extensions are no members of that extension.
    Value("cls", "text", "a text"),
)
EXPECTED = {value.name: value.value for value in VALUES} | {"label": 2, "kind": 1, "tags": (0, 300), "none": ()}
VOCABULARIES = {"label": ["ant", "bee", "cow"], "kind": ["a", "b"], "tags": [str(n) for n in range(301)]}


def manifest_of(values: tuple[Value, ...], shard_format: str) -> ShardManifest:
    empty = SplitEntry(first=0, samples=0, source_bytes=0, samples_by_class=[])
    fields = {
        value.name: FieldEntry(kind=value.kind, place=place, classes=VOCABULARIES.get(value.name, []))
        for place, value in enumerate(values)
    }
    given = {"fingerprint": "f", "format": shard_format, "seed": 0, "classes": VOCABULARIES["label"], "rejected": []}
    splits = dict.fromkeys(("train", "validation", "test"), empty)
    return ShardManifest.model_validate({**given, "splits": splits, "shards": Shards.of([]), "fields": fields})


def write(values: tuple[Value, ...], shard_format: str) -> bytes:
    sample = Sample(b"k" * 16, b"", "", 2, "", "cät/1.png", 640, 480, "RGB", values=values)
    return frame(sample, shard_format)


@pytest.mark.parametrize("shard_format", FORMATS)
def test_every_kind_comes_back(shard_format: str) -> None:
    manifest, stored = manifest_of(VALUES, shard_format), write(VALUES, shard_format)
    # A document sorts names, and loaders are sent to other processes.
    manifest = ShardManifest.parse(manifest.to_json(), where="x")
    assert list(manifest.sample_fields) == [value.name for value in VALUES]
    assert (manifest.image_field, manifest.label_field) == ("picture", "label")
    reader = pickle.loads(pickle.dumps(FieldReader(manifest)))
    found = reader.read(stored, 2)
    assert found == EXPECTED
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in EXPECTED.items()
    }
    assert [type(one) for one in found["more"]["a"][:2]] == [int, float]
    assert image_of(stored, manifest) == IMAGE and path_in(stored, shard_format) == "cät/1.png"
    for name in EXPECTED:
        assert FieldReader(manifest, [name]).read(stored, 2) == {name: EXPECTED[name]}
    assert FieldReader(manifest, ("mask", "label")).read(stored, 7) == {"mask": b"a mask", "label": 7}


@pytest.mark.parametrize("shard_format", FORMATS)
def test_an_image_and_its_label(shard_format: str) -> None:
    sample, manifest = make_sample(1), manifest_of((), shard_format)
    stored = frame(sample, shard_format)
    assert FieldReader(manifest).read(stored, 1) == {"image": sample.content, "label": 1}
    assert FieldReader(manifest, ["label"]).read(b"", 3) == {"label": 3}
    assert image_of(stored, manifest) == sample.content and path_in(stored, shard_format) == sample.path
    several = frame(sample._replace(labels=(1, 300), class_names=("b", "c")), shard_format)
    manifest = manifest.model_copy(update={"multi_label": True})
    assert FieldReader(manifest).read(several, NO_LABEL) == {"image": sample.content, "label": (1, 300)}
    none = frame(sample._replace(labels=()), shard_format)
    assert FieldReader(manifest, ["label"]).read(none, NO_LABEL) == {"label": ()}


@pytest.mark.parametrize("shard_format", FORMATS)
def test_samples_that_are_cut_or_of_other_fields_are_damaged(shard_format: str) -> None:
    stored = write(VALUES, shard_format)
    reader = FieldReader(manifest_of(VALUES, shard_format))
    # The padding behind the last member holds nothing.
    needed = len(stored.rstrip(b"\0")) if shard_format == "webdataset" else len(stored)
    for end in (0, needed // 3, needed - 1):
        with pytest.raises(DamagedSample, match="cannot be parsed"):
            reader.read(stored[:end], 2)
    for broken in (b"\xff" * 2000, bytes(2048), stored[1:], write(VALUES[:5], shard_format)):
        with pytest.raises(DamagedSample):
            reader.read(broken, 2)
        assert path_in(broken, shard_format) in (None, "cät/1.png")
    numbers = Example(features={"feature": {name: {"int64_list": {"value": [1]}} for name in EXPECTED}})
    with pytest.raises(DamagedSample):
        FieldReader(manifest_of(VALUES, "tfrecord"), ["note"]).read(numbers.SerializeToString(), 2)
    for name in ("mask", "price", "tags"):
        without = write(tuple(value for value in VALUES if value.name != name), shard_format)
        with pytest.raises(DamagedSample):
            FieldReader(manifest_of(VALUES, shard_format), [name]).read(without, 2)


def test_fields_that_are_not_there_are_named() -> None:
    with pytest.raises(DataError, match="the shards have no field 'depth'"):
        FieldReader(manifest_of(VALUES[:2], "tfrecord"), ["note", "depth"])


def test_a_tf_train_example_has_a_feature_for_each_field() -> None:
    beyond = Value("huge", "number", -1e300)
    stored = write((*VALUES, beyond), "tfrecord")
    found = dict(Example.FromString(stored).features.feature.items())
    values = {name: list(getattr(one, one.WhichOneof("kind")).value) for name, one in found.items()}
    assert values.pop("price") == [struct.unpack("<f", struct.pack("<f", 0.1))[0]]
    assert json.loads(values.pop("more")[0]) == EXPECTED["more"]
    assert values == {
        "picture": [IMAGE],
        "picture/format": [b"png"],
        "mask": [b"a mask"],
        "mask/format": [b"jpeg"],
        "blob": [EXPECTED["blob"]],
        "note": [EXPECTED["note"].encode()],
        "cls": [b"a text"],
        "label": [2],
        "label/text": [b"cow"],
        "kind": [1],
        "kind/text": [b"b"],
        "tags": [0, 300],
        "tags/text": [b"x", b"y"],
        "none": [],
        "none/text": [],
        "price/float64": [struct.pack("<d", 0.1)],
        # Beyond the range of float32.
        "huge": [-math.inf],
        "huge/float64": [struct.pack("<d", -1e300)],
        "sample/path": ["cät/1.png".encode()],
        "sample/width": [640],
        "sample/height": [480],
    }
    kinds = {found[name].WhichOneof("kind") for name in ("picture", "note", "label/text", "none/text", "price/float64")}
    assert kinds == {"bytes_list"}


def test_a_tar_has_a_member_for_each_file() -> None:
    with tarfile.open(fileobj=io.BytesIO(write(VALUES, "webdataset") + END)) as archive:
        found = {member.name.partition(".")[2]: archive.extractfile(member) for member in archive}
        contents = {name: file.read() for name, file in found.items() if file is not None}
    description = json.loads(contents.pop("json"))
    assert contents == {
        "png": IMAGE,
        "mask.jpg": b"a mask",
        "blob.bin": EXPECTED["blob"],
        "note.txt": EXPECTED["note"].encode(),
        "cls.txt": b"a text",
        "cls": b"2",
    }
    assert description["path"] == "cät/1.png" and description["width"] == 640
    assert description["fields"] == {
        "label": {"index": 2, "name": "cow"},
        "kind": {"index": 1, "name": "b"},
        "tags": {"index": [0, 300], "name": ["x", "y"]},
        "none": {"index": [], "name": []},
        "price": 0.1,
        "more": EXPECTED["more"],
    }
