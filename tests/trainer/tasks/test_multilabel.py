"""Several labels: losses by hand; metrics, thresholds and report by definition on binned scores, at 1-3 ranks."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from contracts.errors import ConfigError
from tests import scores
from tests.conftest import small_config
from tests.trainer.tasks.drawn_splits import CERTAIN, LABELS, NOBODY, label_split, labels_manifest, labels_task
from trainer.tasks import multilabel
from trainer.tasks.counts import ScoreCounts
from trainer.tasks.multilabel import (
    MAX_BINS,
    WORST_SAMPLES,
    average_precision,
    best_threshold,
    bin_edges,
)
from trainer.tasks.task import Mode
from trainer.weights.save import save_weights

TRAINING, EVALUATION = Mode(training=True), Mode(training=False)
LOGITS, TRUE = label_split()[0].numpy(), label_split()[1].numpy() == 1
PROBABILITIES = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
THERE = [place for place in range(LABELS) if place != NOBODY]
EDGES = bin_edges(MAX_BINS)
# Each score as the lower edge of its bin.
BINNED = EDGES[np.clip(np.searchsorted(EDGES, LOGITS, side="right") - 1, 0, None)]


@pytest.fixture
def found(evaluations: Any) -> Any:
    """The result of the evaluation, which is that of any number of ranks."""
    one, two, three = (evaluations[ranks]["labels"] for ranks in (1, 2, 3))
    assert one == two == three
    return one


# --- losses and labels ------------------------------------------------------------------------------------------------

# Sigmoids of these are (0.75, 0.2) and (0.5, 0.9).
SMALL_LOGITS = torch.logit(torch.tensor([[0.75, 0.2], [0.5, 0.9]], dtype=torch.float64)).float()
SMALL_LABELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
# Of each pair: minus the logarithm of the probability of what is right.
PAIRS = [[-math.log(0.75), -math.log(0.8)], [-math.log(0.5), -math.log(0.9)]]
PLAIN = sum(map(sum, PAIRS)) / 2


def loss_of(task: Any, mode: Mode = TRAINING, **more: Any) -> float:
    loss, count = task.loss(SMALL_LOGITS, {"label": SMALL_LABELS, **more}, mode)
    assert count == 2 and loss.ndim == 0
    return float(loss)


def test_the_loss_is_a_sum_over_samples_of_means_over_classes_smoothed_in_training_alone() -> None:
    task = labels_task(2, train={"label_smoothing": 0.2})
    # 0.9 for what is right, 0.1 for what is not.
    wrong = [[-math.log(0.25), -math.log(0.2)], [-math.log(0.5), -math.log(0.1)]]
    smooth = sum(0.9 * r + 0.1 * w for rs, ws in zip(PAIRS, wrong, strict=True) for r, w in zip(rs, ws, strict=True))
    assert loss_of(task) == pytest.approx(smooth / 2, abs=1e-6)
    assert loss_of(task, EVALUATION) == loss_of(labels_task(2)) == pytest.approx(PLAIN, abs=1e-6)


def test_weights_are_of_positive_labels() -> None:
    task = labels_task(2, arguments={"class_weights": {"class 1": 5.0}})
    assert loss_of(task) == pytest.approx(PLAIN + 4 * PAIRS[1][1] / 2, abs=1e-6)
    # Samples outside of a class over samples of it; 1 where all or none have it.
    weights = multilabel._balanced_weights(labels_manifest(4, [10, 30, 0, 40]))
    assert weights.tolist() == pytest.approx([3.0, 1 / 3, 1.0, 1.0])
    for given in ({"cat": 2.0}, {"class 0": 0}, "even"):
        with pytest.raises(ConfigError, match="class_weights"):
            labels_task(2, arguments={"class_weights": given})


def test_a_mixed_batch_takes_both_sets_of_labels_by_their_shares() -> None:
    task = labels_task(2, arguments={"class_weights": {"class 0": 2.0}})

    def alone(row: int, labels: int) -> float:
        batch = {"label": SMALL_LABELS[labels : labels + 1]}
        return float(task.loss(SMALL_LOGITS[row : row + 1], batch, TRAINING)[0])

    expected = 0.9 * alone(0, 0) + 0.1 * alone(0, 1) + 0.4 * alone(1, 1) + 0.6 * alone(1, 0)
    assert loss_of(task, shares=torch.tensor([0.9, 0.4])) == pytest.approx(expected, abs=1e-6)


def test_labels_of_a_batch_are_ones_and_there_may_be_none() -> None:
    task, stream = labels_task(3, data={"image_size": 8}), io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    samples = [{"image": stream.getvalue(), "label": labels} for labels in ((0, 2), (), (1,))]
    batch = task.collate([task.prepare(sample, EVALUATION) for sample in samples], EVALUATION)
    assert batch["label"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]] and batch["label"].dtype == torch.float32
    assert task.example(2)["label"].tolist() == [[0, 0, 0]] * 2


def test_an_exported_network_tells_transformers_that_labels_are_several(tmp_path: Path) -> None:
    network = labels_task(3, data={"image_size": 8}, model=small_config()["model"]).build_model()
    save_weights(network, ["a", "b", "c"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["problem_type"], config["id2label"]["2"]) == ("multi_label_classification", "c")


# --- metrics, thresholds and report over ranks ------------------------------------------------------------------------


def test_metrics_are_by_definition_on_scores_rounded_to_the_bins(found: dict[str, Any]) -> None:
    metrics = found["metrics"]
    expected = np.mean([scores.average_precision(TRUE[:, place], BINNED[:, place]) for place in THERE])
    assert metrics["average_precision"] == pytest.approx(expected, abs=1e-9)
    # A class without a sample is left out, though it is an answer to some.
    expected = np.mean([scores.f1(TRUE[:, place], LOGITS[:, place] >= 0) for place in THERE])
    assert metrics["f1_macro"] == pytest.approx(expected, abs=1e-9)
    assert metrics["f1_micro"] == pytest.approx(scores.f1(TRUE, LOGITS >= 0), abs=1e-9)
    expected = np.mean([scores.average_precision(TRUE[:, place], np.zeros(len(TRUE))) for place in THERE])
    assert found["baseline"] == ("the same scores for all samples", pytest.approx(expected, abs=1e-12))


def test_thresholds_are_the_best_on_the_split(found: dict[str, Any]) -> None:
    thresholds = found["calibration"]["thresholds"]
    assert thresholds[NOBODY] == 0.5, "a class without samples"
    edges = multilabel.edge_probabilities(MAX_BINS)
    for place in THERE:
        best = max(scores.f1(TRUE[:, place], PROBABILITIES[:, place] >= edge) for edge in edges[::32])
        assert scores.f1(TRUE[:, place], PROBABILITIES[:, place] >= thresholds[place]) >= best


def test_every_class_at_its_threshold(found: dict[str, Any]) -> None:
    answers = np.array(found["calibration"]["thresholds"]) <= PROBABILITIES
    for place, outcome in enumerate(found["details"]["classes"]):
        true, own = TRUE[:, place], answers[:, place]
        counts = (outcome["positives"], outcome["predicted"], outcome["right"])
        assert counts == (true.sum(), own.sum(), (true & own).sum())
        for name, score in (("f1", scores.f1), ("precision", scores.precision), ("recall", scores.recall)):
            expected = score(true, own)
            actual = np.nan if outcome[name] is None else outcome[name]
            assert actual == pytest.approx(expected, abs=1e-12, nan_ok=True), (place, name)
    assert found["details"]["exact"] == (answers == TRUE).all(axis=1).sum()
    # Logits from 36 up are all in the highest bin.
    certain = found["details"]["classes"][CERTAIN]["average_precision"]
    assert certain == pytest.approx(TRUE[:, CERTAIN].mean(), abs=1e-12)
    assert found["details"]["classes"][NOBODY]["average_precision"] is None


def test_the_worst_samples_have_the_largest_loss(found: dict[str, Any]) -> None:
    logits, labels = label_split()
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    worst = found["details"]["worst"]
    assert [entry["place"] for entry in worst] == losses.neg().argsort(stable=True)[:WORST_SAMPLES].tolist()
    for entry in worst:
        answer = PROBABILITIES[entry["place"]] >= np.array(found["calibration"]["thresholds"])
        true = TRUE[entry["place"]]
        assert entry["labels"] == np.flatnonzero(true).tolist()
        assert {each["label"] for each in entry["missed"]} == set(np.flatnonzero(true & ~answer))
        assert {each["label"] for each in entry["wrong"]} == set(np.flatnonzero(answer & ~true))
        for each in (*entry["missed"], *entry["wrong"]):
            assert each["probability"] == pytest.approx(PROBABILITIES[entry["place"], each["label"]], abs=1e-9)
    assert any(entry["missed"] for entry in worst) and any(entry["wrong"] for entry in worst)


# --- bins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_classes", "bins"), [(1024, 1024), (3000, 348)])
def test_bins_are_fewer_with_very_many_classes(num_classes: int, bins: int) -> None:
    metric = labels_task(num_classes).metrics()["average_precision"]
    assert isinstance(metric, ScoreCounts) and metric.counts.shape == (2, num_classes, bins)


def test_of_equal_thresholds_the_nearest_to_one_half_is_taken() -> None:
    edges = np.array([0.0, 0.2, 0.4, 0.5, 0.6, 0.8])
    true, false = np.array([2.0, 2, 2, 2, 1, 1]), np.array([3.0, 0, 0, 0, 0, 0])
    assert best_threshold(true, false, edges) == 0.5
    assert best_threshold(np.array([2.0, 2, 2, 1, 1, 1]), false, edges) == 0.4
    assert best_threshold(np.zeros(6), false, edges) == 0.5
    assert average_precision(np.zeros(6), false) is None
