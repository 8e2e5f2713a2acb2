"""Fields of many samples at once: to the bit what the way of single samples takes, or left to it."""

import math
import random
import struct
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from contracts.artifacts import FieldEntry, ShardManifest
from records.columns import ColumnReader, Stored
from records.fields import FieldReader
from records.sample import Sample
from records.tfrecord import encode_fields
from tests.trainer.tasks.for_tests import planned_manifest

KINDS: dict[str, Any] = {"one": "number", "many": "numbers", "town": "category", "note": "text", "label": "class"}


def manifest(shard_format: str = "tfrecord", **more: Any) -> ShardManifest:
    fields = {
        name: FieldEntry(kind=kind, place=place, classes=["a", "b"] if kind == "class" else [])
        for place, (name, kind) in enumerate({**KINDS, **more}.items())
    }
    return planned_manifest(2, fields=fields, format=shard_format)


def encode(values: dict[str, Any], *, order: list[str] | None = None) -> bytes:
    """Return a sample of named fields as a shard holds it."""
    packed = []
    for name in order or list(values):
        kind, value = KINDS[name], values[name]
        if kind == "numbers":
            value = struct.pack(f"<{len(value)}d", *value)
        if kind == "class":
            value = (value, "ab"[value])
        packed.append((name, kind, value, ""))
    made = Sample(bytes(16), b"", "", 0, "", "p", 0, 0, "", values=tuple(packed))
    return b"".join(encode_fields(made))


def rows(count: int, *, lengths: tuple[int, ...] = (0, 3, 200, 20_000)) -> list[dict[str, Any]]:
    source = random.Random(1)
    return [
        {
            "one": source.choice([source.gauss(0, 1), math.nan, 5e-324, -0.0]),
            "many": [source.gauss(0, 1e6) for _ in range(20)],
            "town": source.choice(["", "Ulm", "Zürich", "東京", "x" * 130]),
            "note": "é" * source.choice(lengths),
            "label": source.randrange(2),
        }
        for _ in range(count)
    ]


def labels_of(found: list[dict[str, Any]]) -> npt.NDArray[np.int32]:
    return np.array([row["label"] for row in found], np.int32)


@pytest.mark.parametrize("wanted", [list(KINDS), ["label"], ["many"], ["note", "one"], ["town", "label"]])
@pytest.mark.parametrize("count", [1, 50])
def test_columns_are_what_single_samples_hold(wanted: list[str], count: int) -> None:
    given = rows(count)
    stored, labels = [encode(row) for row in given], labels_of(given)
    columns = ColumnReader(manifest(), wanted).read(Stored.join(stored), labels)
    one_by_one = FieldReader(manifest(), wanted)
    assert columns is not None and set(columns) == set(wanted)
    for place, sample in enumerate(stored):
        for name, value in one_by_one.read(sample, int(labels[place])).items():
            found = columns[name][place]
            if KINDS[name] in ("category", "text"):
                assert found == value.encode()
            else:
                assert np.asarray(found, np.float64).tobytes() == np.asarray(value, np.float64).tobytes(), name


def test_samples_may_lie_apart() -> None:
    given = rows(5)
    stored = [encode(row) for row in given]
    content = b"..".join(stored)
    sizes = np.array([len(one) for one in stored])
    found = ColumnReader(manifest(), ["many"]).read(
        Stored(content, np.cumsum(sizes + 2) - sizes - 2, sizes), labels_of(given)
    )
    assert found is not None and found["many"].tolist() == [row["many"] for row in given]


def change(name: str) -> list[bytes]:
    given = rows(4, lengths=(1,))
    stored = [encode(row) for row in given]
    if name == "order":
        stored[2] = encode(given[2], order=list(KINDS)[::-1])
    elif name == "length":
        stored[2] = encode(given[2] | {"many": [1.0]})
    elif name == "missing":
        stored[2] = encode(given[2], order=["one", "town", "note", "label"])
    elif name == "cut":
        stored[3] = stored[3][:-120]
    elif name == "name":
        stored[1] = stored[1].replace(b"many/float64", b"many/float46")
    elif name == "noise":
        stored[0] = bytes(100)
    return stored


@pytest.mark.parametrize("name", ["order", "length", "missing", "cut", "name", "noise"])
def test_samples_that_are_not_alike_are_left_to_the_other_way(name: str) -> None:
    assert ColumnReader(manifest(), list(KINDS)).read(Stored.join(change(name)), np.zeros(4, np.int32)) is None
    assert ColumnReader(manifest(), list(KINDS)).read(Stored.join(change("")), np.zeros(4, np.int32)) is not None


def test_other_shards_and_kinds_have_no_columns() -> None:
    assert not ColumnReader(manifest("webdataset"), ["many"]).possible
    assert not ColumnReader(manifest(more="json"), ["many", "more"]).possible
    assert ColumnReader(manifest(more="json"), ["many"]).possible
    assert not ColumnReader(planned_manifest(2, format="tfrecord"), ["label"]).possible, "no named fields"


def test_long_lists_take_no_more_memory_than_their_bytes() -> None:
    given = [np.random.default_rng(place).normal(size=10_000).tolist() for place in range(40)]
    stored = Stored.join([encode({"many": own, "label": 0}) for own in given])
    reader, labels = ColumnReader(manifest(), ["many"]), np.zeros(40, np.int32)
    tracemalloc.start()
    found = reader.read(stored, labels)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None and found["many"].tolist() == given
    assert peak < 3 * found["many"].nbytes, "an index of each byte takes eight times as much"
