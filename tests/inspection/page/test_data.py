"""The data on a page, in the data card and on the terminal: columns of a table; of rows no word speaks of images."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import ColumnStatistics, Duplicates, ShardManifest
from data_tools.show import describe
from inspection.page import render_report
from inspection.run.data import MOST_COLUMNS, describe_data
from inspection.run.view import ShardView
from inspection.stages import shard
from inspection.terminal import print_run
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.inspection import planted
from tests.inspection.page.test_sections import part, said
from tests.inspection.stages.documents import HOSTILE
from tests.trainer.tasks.tabular.tables import write_shards

IMAGES = re.compile(r"image|picture|pixel|photo", re.IGNORECASE)
COPIES = Duplicates(dropped=False, groups=1, copies=1, leaking_groups=0, listed=[])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardManifest:
    """Shards of a table of all kinds of columns, two of its rows alike."""
    manifest = ShardManifest.load(write_shards(tmp_path_factory.mktemp("rows") / "table", "tabular_regression"))
    return manifest.model_copy(update={"duplicates": COPIES})


def page_of(manifest: ShardManifest) -> str:
    data = describe_data("file:///shards", manifest)
    view = planted.fresh().model_copy(update={"data": data, "pictures": []})
    return part(render_report(view), "data")


def statistics(manifest: ShardManifest, field: str, name: str) -> ColumnStatistics:
    return next(one for one in manifest.fields[field].statistics if one.name == name)


def test_every_column_of_a_table_has_its_figures(rows: ShardManifest) -> None:
    page = page_of(rows)
    names = re.findall(r'<tr><th scope="row">([^<]*)</th><td class="words">([^<]*)<', page.partition('id="columns"')[2])
    assert names == [
        ("town", "town"),
        *((one, "numbers") for one in ("age", "income")),
        *((f"pulse[{place}]", "pulse") for place in range(3)),
        ("price", "label"),
    ]
    figures = {
        name: float(value) for value, name in re.findall(r'value="([^"]*)" data-figure="data\.columns\.([^"]*)"', page)
    }
    town, age = rows.fields["town"], statistics(rows, "numbers", "age")
    assert age.missing and town.missing["train"] and town.unseen["test"] and town.unseen["validation"]
    expected = {
        "0.categories": len(town.vocabulary),
        "0.missing": town.missing["train"],
        "0.unseen.validation": town.unseen["validation"],
        "0.unseen.test": town.unseen["test"],
        **{f"1.{name}": getattr(age, name) for name in ("mean", "std", "least", "most", "missing")},
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    # A training split lacks nothing of its own vocabulary, and a number has none.
    assert "0.unseen.train" not in figures and "1.categories" not in figures and "0.mean" not in figures


def test_of_an_increment_the_training_split_has_unseen_values_too(rows: ShardManifest) -> None:
    town = rows.fields["town"].model_copy(update={"unseen": {"train": 3, "validation": 0, "test": 1}})
    more = rows.model_copy(update={"fields": {**rows.fields, "town": town}})
    assert 'value="3" data-figure="data.columns.0.unseen.train"' in page_of(more)
    assert "| train 3, validation 0, test 1 |" in "\n".join(shard.tell(more).lines)


def test_of_very_many_columns_the_first_are_shown_and_it_is_said(rows: ShardManifest) -> None:
    numbers = rows.fields["numbers"]
    many = [numbers.statistics[0].model_copy(update={"name": f"{HOSTILE} {place}"}) for place in range(1000)]
    wide = rows.model_copy(
        update={"fields": {**rows.fields, "numbers": numbers.model_copy(update={"statistics": many})}}
    )
    data = describe_data("file:///shards", wide)
    assert (len(data.columns), data.num_columns) == (MOST_COLUMNS, 1005)
    page = page_of(wide)
    assert f"{1005 - 40:,} more columns are left out here" in said(page) and HOSTILE not in page
    lines = "\n".join(shard.tell(wide).lines)
    assert "The first 100 of 1,005" in lines and HOSTILE not in lines


def test_figures_that_no_column_has_are_no_column_of_the_table(rows: ShardManifest) -> None:
    town = rows.model_copy(update={"fields": {"town": rows.fields["town"]}})
    assert "Mean" not in said(page_of(town)) and "Categories" in said(page_of(town))


def test_samples_without_named_fields_have_no_columns(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards).model_copy(update={"duplicates": COPIES})
    page = page_of(manifest)
    assert 'id="columns"' not in page
    assert "Copies of images" in said(page) and "that could not be read as images" in said(page)
    card = "\n".join(shard.tell(manifest).lines)
    assert "## Columns" not in card and "## Images" in card and "1 image with the bytes of another" in card
    assert "verified: decode;" in "\n".join(describe(manifest))


def test_where_there_are_no_images_no_word_speaks_of_them(rows: ShardManifest) -> None:
    card, terminal = "\n".join(shard.tell(rows).lines), "\n".join(describe(rows))
    for words in (said(page_of(rows)), card, terminal):
        assert not IMAGES.search(words), words
    assert "Copies of samples" in said(page_of(rows))
    assert "1 sample with the content of another" in card
    assert "verified" not in card and "verified" not in terminal


def test_the_card_and_the_terminal_have_the_columns_too(rows: ShardManifest) -> None:
    town, age = rows.fields["town"], statistics(rows, "numbers", "age")
    card, terminal = shard.tell(rows).lines, list(describe(rows))
    validation, test = town.unseen["validation"], town.unseen["test"]
    (line,) = (one for one in card if one.startswith("| town |"))
    assert line == (
        f"| town | town | category |  |  |  |  | {town.missing['train']} | {len(town.vocabulary)} | "
        f"validation {validation}, test {test} |"
    )
    assert any(one.startswith("| age | numbers | numbers | ") for one in card)
    assert (
        f"column town: {len(town.vocabulary)} categories, {town.missing['train']} missing, "
        f"{validation} unseen in validation, {test} unseen in test"
    ) in terminal
    assert (
        f"column age: mean {age.mean:.6g}, deviation {age.std:.6g}, least {age.least:.6g}, most {age.most:.6g}, "
        f"{age.missing} missing"
    ) in terminal


def test_where_there_are_no_classes_none_are_counted(rows: ShardManifest) -> None:
    view = planted.fresh().model_copy(update={"data": describe_data("file:///shards", rows)})
    print_run(view, terminal := StringIO())
    assert "data.classes" not in page_of(rows)
    assert "0 classes" not in terminal.getvalue() and "0 classes" not in "\n".join(describe(rows))
    assert "3 shards" in terminal.getvalue()


def test_a_split_of_one_shard_has_one_size() -> None:
    found = planted.make_data()
    found = found.model_copy(
        update={"shards": [ShardView(split="test", shards=1, samples=5, bytes=2048, sizes=[2048])]}
    )
    words = said(part(render_report(planted.fresh().model_copy(update={"data": found})), "data"))
    assert "test 1 shard, 2.05 kB" in words and "median" not in words
    many = planted.make_data(shards=1200)
    assert "train 1,200 shards," in said(part(render_report(planted.fresh().model_copy(update={"data": many})), "data"))


@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", [1180, 390])
def test_the_table_of_columns_fits(rows: ShardManifest, tmp_path: Path, width: int) -> None:
    view = planted.fresh().model_copy(update={"data": describe_data("file:///shards", rows), "pictures": []})
    (tmp_path / "page.html").write_text(render_report(view))
    with started_chromium() as browser, opened(browser, tmp_path / "page.html", width=width) as shown:
        shown.check_quiet()
        found: Any = shown.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert found[0] <= found[1]
        table = "document.querySelector('#columns').closest('.scroll')"
        whole, seen = shown.page.evaluate(f"[{table}.scrollWidth, {table}.clientWidth]")
        # On a phone it scrolls within itself.
        assert whole <= seen or width < 820
