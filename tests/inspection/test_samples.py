"""Worst samples of each task, read out of real shards: pictures, texts and the files that they are from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails, WorstSample
from contracts.artifacts.multilabel import LabelScore, MultilabelDetails
from contracts.artifacts.multilabel import WorstSample as WorstLabels
from inspection.samples import file_uri, worst_samples
from records.index import SampleIndex, key_of
from tests.inspection.documents import HOSTILE, make_evaluation
from tests.inspection.report.test_sections import make_labels
from tests.trainer.tasks.texts import CLASSES, make_shards

TEXTS = ["a short one", "long " * 200, HOSTILE, "two\nlines", *(f"text {number}" for number in range(25))]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of shards of texts, most of them in the test split."""
    folder = tmp_path_factory.mktemp("line")
    splits = {"splits": {"train": 0.2, "validation": 0.0, "test": 0.8}}
    make_shards(folder, [(text, CLASSES[place % 3]) for place, text in enumerate(TEXTS)], **splits)
    return storage.normalise(folder / "shards")


def evaluation_of(uri: str, **changes: Any) -> EvaluationReport:
    """An evaluation whose worst samples are all of the test split."""
    manifest = ShardManifest.load(uri)
    index, split = SampleIndex(manifest, uri), manifest.splits["test"]
    keys = [key_of(index[split.first + place]) for place in range(split.samples)]
    worst = [
        WorstSample(shard="x", key=key, place=place, label=0, predicted=1, probability=0.1, predicted_probability=0.8)
        for place, key in enumerate(keys)
    ]
    report = make_evaluation(list(CLASSES), [(0, 0, 9), (1, 1, 9), (2, 0, 2)])
    details = ClassificationDetails.model_validate(report.details).model_copy(update={"worst": worst})
    update = {"details": details.model_dump(mode="json"), "shards_fingerprint": manifest.fingerprint}
    return report.model_copy(update=update | changes)


def test_texts_are_read_out_of_the_shards_unless_they_are_hidden(texts: str) -> None:
    manifest = ShardManifest.load(texts)
    report = evaluation_of(texts, task="text_classification")
    samples = worst_samples(texts, manifest, report)
    shown = [sample.text for sample in samples]
    assert len(set(shown)) == len(shown) > 15 and set(shown) <= {text[:300] for text in TEXTS}
    labels = [(label.what, label.name, label.kind, label.probability) for label in samples[0].labels]
    assert labels == [("label", CLASSES[0], "plain", 0.1), ("predicted", CLASSES[1], "bad", 0.8)]
    hidden = worst_samples(texts, manifest, report, shown=False)
    assert {(sample.text, sample.picture, sample.file) for sample in hidden} == {(None, None, "")}


def test_another_sample_or_a_missing_shard_has_no_text(texts: str, tmp_path: Path) -> None:
    manifest = ShardManifest.load(texts)
    other = evaluation_of(texts, task="text_classification", shards_fingerprint="another")
    assert {sample.text for sample in worst_samples(texts, manifest, other)} == {None}
    copy = Path(shutil.copytree(storage.local_path(texts), tmp_path / "copy"))
    for shard in copy.glob("*test*.tfrecord"):
        shard.unlink()
    report = evaluation_of(texts, task="text_classification")
    assert {sample.text for sample in worst_samples(copy.as_uri(), manifest, report)} == {None}


def test_an_image_has_its_picture_and_its_file(small_shards: str, pictures: Path) -> None:
    samples = worst_samples(small_shards, ShardManifest.load(small_shards), evaluation_of(small_shards))
    assert len({sample.file for sample in samples}) == len(samples) > 3
    for sample in samples:
        assert (pictures / unquote(sample.file)).is_file() and sample.picture is not None


def test_a_sample_of_several_labels_has_its_errors(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    key = evaluation_of(small_shards).details["worst"][0]["key"]
    missed, wrong = [LabelScore(label=2, probability=0.01)], [LabelScore(label=99, probability=0.7)]
    worst = WorstLabels(shard="x", key=key, place=0, loss=3.5, labels=[0, 2], missed=missed, wrong=wrong)
    report = make_labels()
    details = MultilabelDetails.model_validate(report.details).model_copy(update={"worst": [worst]})
    update = {"details": details.model_dump(mode="json"), "shards_fingerprint": manifest.fingerprint}
    (sample,) = worst_samples(small_shards, manifest, report.model_copy(update=update))
    assert sample.loss == 3.5 and sample.picture is not None
    assert [(label.what, label.name) for label in sample.labels] == [
        ("label", "beach"),
        ("label", "unsaid"),
        ("missed", "unsaid"),
        ("wrong", "99"),
    ]


@pytest.mark.parametrize(
    ("source", "path", "uri"),
    [
        ("gs://b/photos", "cat/a b%25.jpg", "gs://b/photos/cat/a b%.jpg"),
        ("/data/photos", "cat/a b.jpg", "file:///data/photos/cat/a%20b.jpg"),
        ("gs://b/list.CSV", "1.jpg", "gs://b/1.jpg"),
        ("photos", "1.jpg", ""),
    ],
)
def test_the_uri_of_a_file_is_that_of_the_source(source: Any, path: str, uri: str) -> None:
    assert file_uri({"sharding": {"source": source}}, path) == uri
