"""Samples without an image on a run's page: the beginning of their text, or of their row."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails, WorstSample
from inspection.page import render_report
from inspection.run.door import Door
from inspection.tasks.classification.worst import worst_samples
from inspection.tasks.pictures import NamedSamples
from records.index import SampleIndex, key_of
from tests.inspection import planted
from tests.inspection.documents import HOSTILE, make_evaluation
from tests.page_text import part, said
from tests.trainer.tasks.texts import CLASSES, make_shards

TEXTS = ["a short one", "long " * 200, HOSTILE, "two\nlines", *(f"text {number}" for number in range(25))]
EVERYTHING_IS_TESTED = {"splits": {"train": 0.2, "validation": 0.0, "test": 0.8}}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    make_shards(folder, [(text, CLASSES[place % 3]) for place, text in enumerate(TEXTS)], **EVERYTHING_IS_TESTED)
    return folder


def evaluation_of(manifest: ShardManifest, uri: str, **changes: Any) -> EvaluationReport:
    """An evaluation whose worst samples are all of the test split."""
    split = manifest.splits["test"]
    worst = [
        WorstSample(
            shard="test.tfrecord",
            key=key_of(SampleIndex(manifest, uri)[split.first + place]),
            place=place,
            label=place % 3,
            predicted=0,
            probability=0.1,
            predicted_probability=0.8,
        )
        for place in range(split.samples)
    ]
    report = make_evaluation(list(CLASSES), [(0, 0, 9), (1, 1, 9), (2, 0, 2)])
    details = ClassificationDetails.model_validate(report.details).model_copy(update={"worst": worst})
    update: dict[str, Any] = {
        "task": "text_classification",
        "details": details.model_dump(mode="json"),
        "shards_fingerprint": manifest.fingerprint,
    }
    return report.model_copy(update=update | changes)


def words(line: Path, *, shown: bool = True, **changes: Any) -> list[str | None]:
    uri = storage.normalise(line / "shards")
    manifest = ShardManifest.load(uri)
    report = evaluation_of(manifest, uri)
    report = report.model_copy(update=changes)
    found = worst_samples(NamedSamples(Door(storage.normalise(line)), uri, manifest, report, shown))
    assert all(one.picture is None for one in found)
    return [one.words for one in found]


def test_the_worst_texts_are_read_out_of_the_shards(line: Path) -> None:
    found = words(line)
    tested = ShardManifest.load(storage.normalise(line / "shards")).splits["test"].samples
    assert len(found) == tested > 15 and all(one is not None and one in {text[:300] for text in TEXTS} for one in found)
    assert len(set(found)) == len(found)


def test_hidden_samples_are_not_read(line: Path) -> None:
    assert set(words(line, shown=False)) == {None}


def test_what_cannot_be_read_or_is_another_sample_has_no_words(line: Path, tmp_path: Path) -> None:
    assert set(words(line, shards_fingerprint="another")) == {None}
    copy = Path(shutil.copytree(line, tmp_path / "copy"))
    for shard in (copy / "shards").glob("*test*.tfrecord"):
        shard.unlink()
    assert set(words(copy)) == {None}


def test_texts_are_told_as_text(line: Path) -> None:
    uri = storage.normalise(line / "shards")
    manifest = ShardManifest.load(uri)
    report = evaluation_of(manifest, uri)
    view = planted.fresh(evaluation=report)
    given: dict[str, Any] = {
        "key": "k",
        "label": "a",
        "predicted": "b",
        "probability": 0.1,
        "predicted_probability": 0.8,
    }
    given["picture"] = None
    worst = [{**given, "words": one} for one in (HOSTILE, "", "x" * 400, None)]
    page = render_report(view.model_copy(update={"task_parts": {"worst": worst}}))
    shown = part(page, "results")
    assert HOSTILE not in shown and "<q>" in shown
    text = said(shown)
    assert "empty" in text and "not shown" in text
    assert "x" * 299 + "…" in text and "x" * 300 not in text
