"""The data on a page and on the terminal; of rows without images no word speaks of images."""

from __future__ import annotations

import re
from io import StringIO

import pytest

from contracts.artifacts import Duplicates, FieldEntry, ShardManifest
from inspection.page import render_report
from inspection.run.data import describe_data
from inspection.run.view import ShardView
from inspection.terminal import print_run
from records.tools.describe import describe
from tests.inspection import planted
from tests.page_text import part, said

IMAGES = re.compile(r"image|picture|pixel|photo", re.IGNORECASE)
COPIES = Duplicates(groups=1, copies=1, leaking_groups=0, listed=[])


@pytest.fixture
def rows(small_shards: str) -> ShardManifest:
    """A manifest of rows with a text and a number, two of them alike."""
    manifest = ShardManifest.load(small_shards)
    fields = {"text": FieldEntry(kind="text"), "price": FieldEntry(kind="number", place=1)}
    splits = {name: split.model_copy(update={"samples_by_class": []}) for name, split in manifest.splits.items()}
    nothing = {"images": None, "mean": None, "std": None, "prepared": None, "classes": [], "rejected": []}
    return manifest.model_copy(update={"fields": fields, "splits": splits, "duplicates": COPIES, **nothing})


def page_of(manifest: ShardManifest) -> str:
    data = describe_data("file:///shards", manifest)
    view = planted.fresh().model_copy(update={"data": data, "pictures": []})
    return part(render_report(view), "data")


def test_samples_are_called_images_where_they_are(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards).model_copy(update={"duplicates": COPIES})
    page = page_of(manifest)
    assert "Copies of images" in said(page) and "that could not be read as images" in said(page)
    assert "verified: decode;" in "\n".join(describe(manifest))


def test_where_there_are_no_images_no_word_speaks_of_them(rows: ShardManifest) -> None:
    terminal = "\n".join(describe(rows))
    for words in (said(page_of(rows)), terminal):
        assert not IMAGES.search(words), words
    assert "Copies of samples" in said(page_of(rows))
    assert "verified" not in terminal


def test_where_there_are_no_classes_none_are_counted(rows: ShardManifest) -> None:
    view = planted.fresh().model_copy(update={"data": describe_data("file:///shards", rows)})
    print_run(view, terminal := StringIO())
    assert "data.classes" not in page_of(rows)
    assert "0 classes" not in terminal.getvalue() and "0 classes" not in "\n".join(describe(rows))
    assert f"{len(rows.shards)} shards" in terminal.getvalue()


def test_a_split_of_one_shard_has_one_size() -> None:
    found = planted.make_data()
    found = found.model_copy(
        update={"shards": [ShardView(split="test", shards=1, samples=5, bytes=2048, sizes=[2048])]}
    )
    words = said(part(render_report(planted.fresh().model_copy(update={"data": found})), "data"))
    assert "test 1 shard, 2.05 kB" in words and "median" not in words
    many = planted.make_data(shards=1200)
    assert "train 1,200 shards," in said(part(render_report(planted.fresh().model_copy(update={"data": many})), "data"))
