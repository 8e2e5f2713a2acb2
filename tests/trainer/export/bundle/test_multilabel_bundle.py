"""The bundle gate of several labels: the shipped predict.py says the labels that the trainer's own way says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import FileEntry, Gate, ShardManifest
from contracts.artifacts.multilabel import LabelOutcome, MultilabelDetails
from tests.trainer.export import colours
from tests.trainer.export.colours import CLASSES, GRAPH_NAME
from tests.trainer.export.graphs import image_signature, run_onnx
from trainer.data.reader import ShardReader
from trainer.export.bundle.shipped import Shipped
from trainer.predict.runtimes import BadFolder
from trainer.predict.serving import in_words
from trainer.tasks.image_multilabel import bundle
from trainer.tasks.images import predict
from trainer.tasks.images.predict import sigmoid
from trainer.tasks.images.transforms import EvaluationTransform

# Probabilities of this model are at most one half: the nearer a colour, the higher.
THRESHOLDS = [0.25, 0.3, 0.25, 0.4, 0.2, 0.35]


@dataclass(frozen=True)
class Export:
    """An export, the shards, and what the model says of them by the trainer's own way."""

    folder: Path
    shards_uri: str
    shards: ShardManifest
    logits: np.ndarray
    labels: np.ndarray
    """[N, classes]"""

    def check(self, folder: Path | None = None, thresholds: list[float] = THRESHOLDS, **changes: Any) -> Gate:
        own = bundle.OwnWay(iter(self.logits), thresholds, CLASSES)
        shipped = Shipped(folder or self.folder, GRAPH_NAME, self.shards_uri, self.shards, 1)
        return bundle.try_program(shipped, **{"own": own, "expected": self.details(), **changes})

    @property
    def said(self) -> np.ndarray:
        return sigmoid(self.logits) >= THRESHOLDS

    def details(self, *, more: int = 0) -> MultilabelDetails:
        """Return what evaluation.json says; `more` labels of the first class besides."""
        outcomes = [
            LabelOutcome(
                name=name,
                threshold=threshold,
                positives=int(self.labels[:, number].sum()),
                predicted=int(self.said[:, number].sum()) + (more if number == 0 else 0),
                right=int((self.said & self.labels)[:, number].sum()),
                precision=None,
                recall=None,
                f1=None,
                average_precision=None,
            )
            for number, (name, threshold) in enumerate(zip(CLASSES, THRESHOLDS, strict=True))
        ]
        return MultilabelDetails(classes=outcomes, exact=0, worst=[])


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    place = tmp_path_factory.mktemp("several")
    shards = colours.write_shards(place / "shards", several=True)
    write_export(place / "export", THRESHOLDS)
    reader = ShardReader(storage.normalise(place / "shards"), shards, "test")
    transform = EvaluationTransform(colours.SIZE, tuple(colours.MEAN), tuple(colours.STD))  # type: ignore[arg-type]
    samples = [reader.sample(place) for place in range(len(reader))]
    images = transform.normalise(np.stack([transform.decode(sample["image"]) for sample in samples])).numpy()
    labels = np.zeros((len(samples), len(CLASSES)), bool)
    for row, sample in enumerate(samples):
        labels[row, list(sample["label"])] = True
    logits = run_onnx(place / "export" / GRAPH_NAME, images)
    return Export(place / "export", storage.normalise(place / "shards"), shards, logits, labels)


def write_export(folder: Path, thresholds: list[float]) -> None:
    folder.mkdir()
    colours.write_graph(folder / GRAPH_NAME)
    checkpoint = colours.make_checkpoint().model_copy(update={"calibration": {"thresholds": thresholds}})
    inputs = replace(colours.make_inputs(), checkpoint=checkpoint)
    signature = image_signature(colours.SIZE, len(CLASSES))
    bundle.write_bundle(folder, inputs, signature, model_name=GRAPH_NAME, max_batch=5)


@pytest.fixture
def copy(export: Export, tmp_path: Path) -> Path:
    """The export's folder, to be damaged."""
    return Path(shutil.copytree(export.folder, tmp_path / "copy"))


def test_a_sound_bundle_passes(export: Export) -> None:
    assert {int(row.sum()) for row in export.said} >= {0, 1, 2}, "images with none, one and several"
    gate = export.check()
    assert (gate.name, gate.precision, gate.status, gate.reason) == ("bundle", "fp32", "passed", "")
    both, exact = export.said & export.labels, (export.said == export.labels).all(axis=1)
    assert gate.figures["labels_said"] == export.said.sum()
    assert gate.figures["labels_right"] == both.sum() > 0
    assert gate.figures["sets_right"] == exact.sum() > 0
    assert (gate.figures["images"], gate.figures["other_sets"], gate.figures["evaluation_difference"]) == (72, 0, 0)
    assert float(gate.figures["score_difference"] or 0) < 1e-6
    assert gate.figures["mean_score"] == pytest.approx(sigmoid(export.logits)[export.said].mean())


def set_value(name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "preprocess.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def set_threshold(folder: Path) -> None:
    labels = json.loads((folder / "labels.json").read_text())
    labels[4]["threshold"] += 0.05
    (folder / "labels.json").write_text(json.dumps(labels))


def exchange_names(folder: Path) -> None:
    labels = json.loads((folder / "labels.json").read_text())
    labels[0]["label"], labels[1]["label"] = labels[1]["label"], labels[0]["label"]
    (folder / "labels.json").write_text(json.dumps(labels))


def edit_program(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "predict.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        pytest.param(set_threshold, "images have other labels than the trainer's own way (the", id="threshold"),
        pytest.param(exchange_names, "images have other labels", id="names"),
        pytest.param(set_value("mean", [0.75, 0.5, 0.4]), "images have other labels", id="mean"),
        # Of no image the labels change, at these thresholds.
        pytest.param(set_value("mean", [0.4502, 0.5, 0.4]), "scores are up to", id="a hair"),
        pytest.param(set_value("activation", "softmax"), "predict.py ended with exit code 2", id="activation"),
        pytest.param(edit_program("scores[place] >= limits[place]", "scores[place] > 0.5"), "labels", id="halves"),
        pytest.param(
            edit_program(
                "        image = decode(content, self.background, self.max_pixels)\n",
                '        raise serving.BadSample("no")\n',
            ),
            "72 images got no answer, the first: no",
            id="no answers",
        ),
    ],
)
def test_every_mutation_is_seen(export: Export, copy: Path, mutate: Callable[[Path], None], words: str) -> None:
    mutate(copy)
    gate = export.check(copy)
    assert gate.status == "failed" and words in gate.reason, gate
    gate.model_dump_json()


def test_an_evaluation_with_other_counts_is_seen(export: Export) -> None:
    gate = export.check(expected=export.details(more=1))
    assert (gate.status, gate.reason) == ("failed", "1 labels differ from evaluation.json")
    assert export.check(expected=None).status == "passed"
    assert export.check(own=None, expected=None).status == "not decidable"


def test_a_score_at_its_threshold_may_fall_on_either_side(export: Export, tmp_path: Path) -> None:
    """Other kernels, other batches: neither the set nor the counts decide about such a label."""
    at = float(sigmoid(export.logits)[7, 4])
    for thresholds in ([*THRESHOLDS[:4], at - 1e-9, 0.35], [*THRESHOLDS[:4], at + 1e-9, 0.35]):
        folder = tmp_path / str(thresholds[4])
        write_export(folder, [*THRESHOLDS[:4], at, 0.35])
        gate = export.check(folder, thresholds, expected=None)
        assert (gate.status, gate.figures["near_threshold"]) == ("passed", 1)


def test_a_finished_export_is_held_against_its_own_figures(export: Export, copy: Path, tmp_path: Path) -> None:
    recorded = export.check()
    document = colours.write_manifest(
        copy, ["labels.json", "preprocess.json", "predict.py", "serving.py", "reading.py", "runtimes.py"]
    )
    document = document.model_copy(update={"gates": [recorded], "task": "image_multilabel"})

    def again(name: str) -> Gate:
        work = tmp_path / name
        work.mkdir()
        return bundle.check_again(Shipped(copy, GRAPH_NAME, export.shards_uri, export.shards, 1), document, work)

    # Not the folder's program: this package's own.
    (copy / "predict.py").write_text("raise SystemExit(9)")
    assert again("first").status == "passed"
    assert FileEntry.of(storage.normalise(copy), "labels.json").bytes > 0
    set_threshold(copy)
    gate = again("second")
    assert gate.status == "failed" and "and was" in gate.reason


def test_names_are_read_from_labels_with_thresholds(export: Export) -> None:
    assert bundle.read_labels(export.folder) == CLASSES
    assert json.loads((export.folder / "labels.json").read_text())[0] == {"label": "black", "threshold": 0.25}
    assert json.loads((export.folder / "preprocess.json").read_text())["activation"] == "sigmoid"


def test_the_program_says_what_reaches_its_threshold_or_the_highest(export: Export) -> None:
    classifier = predict.open_files(lambda name: export.folder / name)
    for logits, said in zip(export.logits, export.said, strict=True):
        found = classifier.predict(logits, None)["predictions"]
        assert {one["label"] for one in found} == {CLASSES[place] for place in np.flatnonzero(said)}
        assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
        highest = classifier.predict(logits, 2)["predictions"]
        assert [one["label"] for one in highest] == [CLASSES[place] for place in np.argsort(-logits)[:2]]
    below = [{"label": name, "score": 0.25, "threshold": limit} for name, limit in (("red", 0.3), ("blue", 0.25))]
    assert in_words({"predictions": below}) == "red 0.2500 (below 0.3000), blue 0.2500"
    assert in_words({"predictions": []}) == "none"


@pytest.mark.parametrize(
    "labels",
    [
        ["black", "blue"],
        [],
        [{"label": "black"}],
        [{"label": "black", "threshold": 1.5}],
        [{"label": "black", "threshold": float("nan")}],
        [{"label": "black", "threshold": True}],
        [{"label": "black", "threshold": 0.5, "more": 1}],
    ],
)
def test_labels_without_thresholds_are_refused(copy: Path, labels: list[Any]) -> None:
    (copy / "labels.json").write_text(json.dumps(labels))
    with pytest.raises(BadFolder, match=r"no list of names and thresholds"):
        predict.open_files(lambda name: copy / name)


def test_a_probability_of_any_logit_is_a_number() -> None:
    logits = np.array([-1e4, -50, 0, 50, 1e4], np.float32)
    np.testing.assert_allclose(sigmoid(logits), [0, np.exp(-50.0), 0.5, 1, 1], rtol=1e-12)
