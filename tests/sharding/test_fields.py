"""Samples of named fields, from a table to shards and back: images with masks, rows of text and numbers."""

import csv
import io
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import SPLITS
from contracts.errors import DataError
from records.fields import FieldReader
from records.index import SampleIndex, key_of
from records.index import read_samples as read_stored

MASKED = {
    "image": {"column": "uri", "kind": "image"},
    "mask": {"column": "mask_uri", "kind": "image"},
    "label": {"column": "label", "kind": "class"},
}
ROWS = {
    "text": {"column": "review", "kind": "text"},
    "label": {"column": "stars", "kind": "class"},
    "tags": {"column": "tags", "kind": "classes"},
    "language": {"column": "language", "kind": "class"},
    "price": {"column": "price", "kind": "number"},
    "more": {"column": "more", "kind": "json"},
}
# The bucket's client leaves connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
# Of ROWS, in the order of `row`.
COLUMNS = [field["column"] for field in ROWS.values()]


def read_samples(folder):
    """Return the fields of every sample by its key, and its split."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    reader = FieldReader(manifest)
    found = {}
    index = SampleIndex(manifest, uri)
    for place, stored in enumerate(read_stored(index, uri, range(len(index)))):
        split = next(s for s in SPLITS if place < manifest.splits[s].first + manifest.splits[s].samples)
        found[key_of(index[place])] = (split, reader.read(stored, int(index[place]["label"])))
    return found


def make_mask(number):
    """Return a PNG of palette indices, which no other encoder would write the same way."""
    pixels = np.random.default_rng(number).integers(0, 3, (12, 10), np.uint8)
    image = Image.fromarray(pixels).convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


@pytest.fixture
def masked(source, write_file):
    """Return the rows (uri, mask_uri, label) of the fixture's images, each with a mask of its own."""
    rows = []
    for number, path in enumerate(sorted(source.glob("*/*.*"))):
        write_file(source, f"masks/{number}.png".encode(), make_mask(number))
        rows.append([path.relative_to(source).as_posix(), f"masks/{number}.png", path.parent.name])
    return rows


def write_csv(path, header, rows):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def write_masked(source, rows, name="list.csv"):
    return str(write_csv(source / name, ["uri", "mask_uri", "label"], rows))


def row(number):
    # A CSV has the first ones in no quotes.
    text = f" blank first {number}" if number < 5 else f' review {number}, of "many"\nlines and ünïcode {number}'
    return [
        text,
        ("bad", "fine", "good")[number % 3],
        ["new", "used"] if number % 2 else ["used"],
        ("de", "en")[number % 2],
        number / 7 - 1e-300,
        {"nested": [1, 1.0, None, "x"], "number": number},
    ]


def write_rows(folder, form, rows):
    folder.mkdir(exist_ok=True)
    path = folder / f"reviews.{form}"
    if form == "csv":
        cells = [[a, b, json.dumps(c), d, repr(e), json.dumps(f)] for a, b, c, d, e, f in rows]
        return write_csv(path, COLUMNS, cells)
    if form == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, one, strict=True))) + "\n" for one in rows))
        return path
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    # Values of several types are no column of Arrow's.
    columns["more"] = [json.dumps(one) for one in columns["more"]]
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# --- images with masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_images_with_masks_come_back_as_they_were(run_shard, source, masked, shard_format):
    result = run_shard(source=write_masked(source, masked), fields=MASKED, format=shard_format)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert (manifest.format, manifest.classes, manifest.multi_label) == (shard_format, ["ant", "bee", "cow"], False)
    kinds = {name: entry.kind for name, entry in manifest.sample_fields.items()}
    assert list(kinds.items()) == [("image", "image"), ("mask", "image"), ("label", "class")]
    assert manifest.sample_fields["label"].classes == manifest.classes
    found = sorted((one["image"], one["mask"], one["label"]) for _, one in read_samples(result.folder).values())
    assert found == sorted(
        ((source / uri).read_bytes(), (source / mask).read_bytes(), manifest.classes.index(label))
        for uri, mask, label in masked
    )


def test_only_the_first_image_is_changed_and_another_mask_is_another_sample(run_shard, source, masked, write_file):
    given = {"source": write_masked(source, masked), "fields": MASKED, "resize": 8, "incremental": True}
    result = run_shard(**given)
    assert result.code == 0, result.stderr
    assert result.manifest.prepared.changed == {"resize": 60} and result.manifest.images.width == [8, 8]
    for _, one in read_samples(result.folder).values():
        assert Image.open(io.BytesIO(one["image"])).size == (8, 10)
    write_file(source, b"masks/7.png", make_mask(777))
    os.utime(source / "masks/7.png")
    second = run_shard(**given)
    assert "0 new, 1 changed, 0 gone" in second.stderr, second.stderr
    samples = [one for _, one in read_samples(second.folder).values()]
    assert len(samples) == 60 and {one["mask"] for one in samples} == {
        make_mask(777 if n == 7 else n) for n in range(60)
    }


def test_a_mask_that_does_not_decode_is_rejected_by_name(run_shard, source, masked, write_file):
    write_file(source, b"masks/7.png", make_mask(7)[:-30])
    given = {"source": write_masked(source, masked), "fields": MASKED}
    result = run_shard(root="some", max_rejected_fraction=0.1, **given)
    (rejected,) = result.manifest.rejected
    assert rejected.path == masked[7][0] and rejected.reason.startswith("field mask: ")
    assert len(read_samples(result.folder)) == 59
    printed = run_shard("--dry-run", printed=True, **given)
    assert printed.code == 0 and "3 classes" in printed.stdout
    assert "60 of 60 samples were checked: 1 cannot be used" in printed.stdout and "field mask: " in printed.stdout
    refused = run_shard(fields=MASKED)
    assert refused.code == 2 and "has no columns" in refused.stderr


def test_bytes_alone_name_a_sample(run_shard, source, masked):
    fields = {
        "note": {"column": "label", "kind": "text"},
        "blob": {"column": "uri", "kind": "bytes"},
        "other": {"column": "mask_uri", "kind": "bytes"},
    }
    (source / "masks/3.png").write_bytes(b"")
    result = run_shard(source=write_masked(source, masked), fields=fields)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert manifest.format == "webdataset"
    assert manifest.images is None and manifest.mean is None and manifest.classes == []
    found = sorted((one["blob"], one["other"], one["note"]) for _, one in read_samples(result.folder).values())
    assert found == sorted((((source / a).read_bytes()), (source / b).read_bytes(), c) for a, b, c in masked)


# --- rows without files -----------------------------------------------------------------------------------------------


def test_rows_of_all_forms_are_the_same_samples(run_shard, listing_of, tmp_path):
    rows = [row(number) for number in range(40)]
    sources = [str(write_rows(tmp_path / "rows", form, rows)) for form in ("csv", "jsonl", "parquet")]
    assert len({listing_of(source, fields=ROWS).sha256 for source in sources}) == 1
    result = run_shard(source=sources[0], fields=ROWS)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert manifest.format == "tfrecord" and manifest.classes == ["bad", "fine", "good"]
    assert manifest.sample_fields["tags"].classes == ["new", "used"]
    assert manifest.sample_fields["language"].classes == ["de", "en"]
    found = sorted(read_samples(result.folder).values(), key=lambda one: one[1]["more"]["number"])
    for number, (_, sample) in enumerate(found):
        text, stars, tags, language, price, more = rows[number]
        assert sample["text"] == text and sample["more"] == more
        assert manifest.classes[sample["label"]] == stars
        assert [manifest.sample_fields["tags"].classes[one] for one in sample["tags"]] == tags
        assert manifest.sample_fields["language"].classes[sample["language"]] == language
        assert sample["price"].hex() == price.hex()
        assert isinstance(sample["more"]["nested"][1], float) and isinstance(sample["more"]["nested"][0], int)


def test_an_inserted_row_moves_no_other(run_shard, tmp_path):
    rows = [row(number) for number in range(60)]
    before = run_shard(root="a", source=str(write_rows(tmp_path / "a", "csv", rows)), fields=ROWS)
    changed = [row(99), *rows[30:], rows[0], *rows[:30]]
    after = run_shard(root="b", source=str(write_rows(tmp_path / "b", "csv", changed)), fields=ROWS)
    old, new = read_samples(before.folder), read_samples(after.folder)
    assert len({split for split, _ in old.values()}) == 3
    assert {key: new[key] for key in old} == old and len(new) == 62
    # The repeat of a row is a sample of its own, and a copy.
    (group,) = after.manifest.duplicates.listed
    assert [copy.path.partition("-")[0] for copy in group.copies] == [group.copies[0].path.partition("-")[0]] * 2


def test_numbers_alone_need_no_class(run_shard, tmp_path):
    fields = {"x": {"column": "x", "kind": "number"}, "y": {"column": "y", "kind": "number"}}
    (tmp_path / "t.jsonl").write_text("".join(f'{{"x": {n}.5, "y": {n}}}\n' for n in range(50)))
    result = run_shard(source=str(tmp_path / "t.jsonl"), fields=fields)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert manifest.classes == [] and manifest.splits["train"].samples_by_class == []
    assert sum(split.samples for split in manifest.splits.values()) == 50
    assert sorted(one["y"] for _, one in read_samples(result.folder).values()) == [float(n) for n in range(50)]
    printed = run_shard("--dry-run", source=str(tmp_path / "t.jsonl"), fields=fields, printed=True, root="dry")
    assert f"train: {manifest.splits['train'].samples} samples in " in printed.stdout, printed.stdout
    (tmp_path / "t.jsonl").write_text('{"x": 1, "y": 1, "split": "test"}\n')
    refused = run_shard(source=str(tmp_path / "t.jsonl"), fields=fields)
    assert refused.code == 2 and "no sample in the training split" in refused.stderr


# --- increments -------------------------------------------------------------------------------------------------------


def test_an_increment_adds_and_edits_rows(run_shard, tmp_path):
    rows = [row(number) for number in range(40)]
    given = {"fields": ROWS, "incremental": True, "splits": {"train": 1.0, "validation": 0.0, "test": 0.0}}
    place = tmp_path / "rows"
    first = run_shard(source=str(write_rows(place, "jsonl", rows)), **given)
    assert first.code == 0, first.stderr
    added = row(100)
    added[2], added[3] = ["aaa", "used"], "aa"
    rows[3] = [*rows[3][:4], 123.0, *rows[3][5:]]
    second = run_shard(source=str(write_rows(place, "jsonl", [*rows[:39], added])), **given)
    assert second.code == 0, second.stderr
    assert "2 new, 0 changed, 2 gone" in second.stderr
    # Places in old shards stay right.
    assert second.manifest.sample_fields["tags"].classes == ["new", "used", "aaa"]
    assert second.manifest.sample_fields["language"].classes == ["de", "en", "aa"]
    found = {one["more"]["number"]: one for _, one in read_samples(second.folder).values()}
    assert found.keys() == {*range(39), 100}
    assert found[3]["price"] == 123.0 and found[100]["tags"] == (1, 2) and found[100]["language"] == 2
    assert found[5]["tags"] == (0, 1)


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("review", 3, "column 'review' (text) is 3 (int)"),
        ("tags", "new", "(classes) is 'new' (str): no list"),
        ("price", float("nan"), "(number) is nan (float): not finite"),
        ("review", "", "(text) is empty\n  allowed: any text but none"),
        ("more", {"a": float("nan")}, "(json) is {'a': nan}"),
    ],
)
def test_a_wrong_cell_is_named_by_its_line(listing_of, tmp_path, column, cell, message):
    path = write_rows(tmp_path / "rows", "jsonl", [row(number) for number in range(5)])
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), column: cell})
    path.write_text("\n".join(lines))
    with pytest.raises(DataError) as raised:
        listing_of(path, fields=ROWS)
    assert "line 3" in str(raised.value) and message in str(raised.value)
