"""Results that one can act on: which files were got wrong, how sure the figures are, and all of the matrix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.artifacts.classification import ClassificationDetails
from inspection.page import render_report
from inspection.run.door import Door
from inspection.tasks.classification.worst import worst_samples
from inspection.tasks.pictures import NamedSamples, file_uri
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.inspection import planted
from tests.inspection.tasks.test_words import evaluation_of
from tests.page_text import part, said


def test_a_badly_classified_image_names_its_file(small_shards: str, pictures: Path) -> None:
    manifest = ShardManifest.load(small_shards)
    report = evaluation_of(manifest, small_shards, task="image_classification")
    door = Door(storage.normalise(Path(storage.local_path(small_shards)).parent))
    found = worst_samples(NamedSamples(door, small_shards, manifest, report))
    paths = [one.path for one in found]
    assert len(set(paths)) == len(paths) > 3
    assert all((pictures / unquote(path)).is_file() for path in paths), paths
    # Its class is its folder: what is shown is the sample's own name.
    index = {one.path: one.picture.label for one in found if one.picture is not None}
    assert len(index) == len(found)
    assert all(unquote(path).split("/")[0] == label for path, label in index.items())
    hidden = worst_samples(NamedSamples(door, small_shards, manifest, report, shown=False))
    assert {(one.path, one.picture, one.words) for one in hidden} == {("", None, None)}


@pytest.mark.parametrize(
    ("source", "path", "uri"),
    [
        ("gs://b/photos", "cat/a b%25.jpg", "gs://b/photos/cat/a b%.jpg"),
        ("/data/photos", "cat/a b.jpg", "file:///data/photos/cat/a%20b.jpg"),
        ("gs://b/list.CSV", "1.jpg", "gs://b/1.jpg"),
        ("/data/photos", "/elsewhere/1.jpg", "file:///elsewhere/1.jpg"),
        ("photos", "1.jpg", ""),
        ("gs://b/photos", "", ""),
    ],
)
def test_the_uri_of_a_file_is_that_of_the_source(source: Any, path: str, uri: str) -> None:
    assert file_uri({"sharding": {"source": source}}, path) == uri


def page_with(path: str, source: str) -> str:
    view = planted.fresh(config={"sharding": {"source": source}})
    worst = [{**view.task_parts["worst"][0], "path": path}]
    return part(render_report(view.model_copy(update={"task_parts": {"worst": worst}})), "results")


def test_the_file_is_a_link_to_where_it_is() -> None:
    page = page_with("rose/7.jpg", "gs://b/photos")
    address = "https://console.cloud.google.com/storage/browser/_details/b/photos/rose/7.jpg"
    assert f'<a href="{address}">rose/7.jpg</a>' in page and "gs://b/photos/rose/7.jpg" in said(page)
    assert '<a href="file:///photos/rose/7.jpg">rose/7.jpg</a>' in page_with("rose/7.jpg", "/photos")
    assert "<a " not in page_with("rose/7.jpg", "photos") and "rose/7.jpg" in page_with("rose/7.jpg", "photos")


def test_figures_have_their_intervals_and_macro_f1() -> None:
    page = part(render_report(planted.fresh()), "results")
    words = said(page)
    # Wilson's interval of 296 of 320, and of 37 of 40.
    assert "89.08 % to 94.91 % (95 % interval), test split" in words
    assert "92.5 % (80.1 % to 97.4 %)" in words
    # All classes do alike: 37 right, 40 labelled, 40 predicted.
    found = re.findall(r'value="([^"]*)" data-figure="(?:results\.f1_macro|class\.2\.f1)"', page)
    assert [float(one) for one in found] == pytest.approx([0.925] * 2)
    measured = planted.make_evaluation().model_copy(update={"metrics": {"accuracy": 0.925, "f1_macro": 0.75}})
    assert 'value="0.75" data-figure="results.f1_macro"' in render_report(planted.fresh(evaluation=measured))


def test_validation_stands_beside_test() -> None:
    table = said(part(render_report(planted.fresh()), "results").partition('id="metrics"')[2].replace("<", " <"))
    assert "Metric Validation Test accuracy 95.00 % 93.75 % loss 0.19 0.21" in table


@NEEDS_CHROMIUM
@pytest.mark.parametrize(("classes", "each", "length"), [(8, 40, 9), (30, 4000, 24)])
def test_the_confusion_matrix_is_never_clipped(tmp_path: Path, classes: int, each: int, length: int) -> None:
    names = [f"{place} {'long name of a class'[:length]}" for place in range(classes)]
    view = planted.fresh(evaluation=planted.make_evaluation(names, each=each))
    details = ClassificationDetails.of(view.evaluation) if view.evaluation else None
    assert details is not None and view.evaluation is not None
    full = [(one, other, each // classes) for one in range(classes) for other in range(classes)]
    told = details.model_copy(update={"confusion": full}).model_dump(mode="json")
    view = view.model_copy(update={"evaluation": view.evaluation.model_copy(update={"details": told})})
    (tmp_path / "page.html").write_text(render_report(view))
    with started_chromium() as browser, opened(browser, tmp_path / "page.html", width=1180) as shown:
        box = "document.querySelector('#confusion').closest('.scroll')"
        whole, seen = shown.page.evaluate(f"[{box}.scrollWidth, {box}.clientWidth]")
        assert whole <= seen, "no column is out of sight"
        cut: Any = shown.page.evaluate(
            "Array.from(document.querySelectorAll('#confusion th'), e => [e.scrollWidth - e.clientWidth, "
            "e.scrollHeight - e.clientHeight]).filter(([x, y]) => x > 1 || y > 1)"
        )
        assert cut == [], "names are whole"
