"""Classification with one class per sample: losses by hand; metrics and report by definition, at 1 to 3 ranks."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import ConfigError
from tests.scores import confusion_matrix, f1, recall, roc_area, roc_curve
from tests.trainer.tasks.drawn_splits import CLASSES, NOBODY, ONE_BATCH, class_split, class_task
from tests.trainer.tasks.for_tests import planned_manifest
from trainer.tasks import classification
from trainer.tasks.classification import WORST_SAMPLES
from trainer.tasks.task import Mode

TRAINING, EVALUATION = Mode(training=True), Mode(training=False)
# Softmax of these is (0.7, 0.2, 0.1) and (0.25, 0.5, 0.25).
LOGITS = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]))
LABELS = torch.tensor([0, 2])
PLAIN = [-math.log(0.7), -math.log(0.25)]
SIZES = {"classes": (None, CLASSES), "two classes": (None, 2), "one batch": (ONE_BATCH, CLASSES)}


def split_of(case: str) -> tuple[Any, Any, Any]:
    """Logits, labels and answers of a case."""
    samples, classes = SIZES[case]
    logits, labels = class_split(*([samples] if samples else []), classes=classes)
    return logits.numpy(), labels.numpy(), logits.argmax(dim=1).numpy()


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_of(task: Any, mode: Mode = TRAINING, **more: Any) -> float:
    loss, count = task.loss(LOGITS, {"label": LABELS, **more}, mode)
    assert count == 2 and loss.ndim == 0
    return float(loss)


def test_cross_entropy_is_summed_and_smoothed_in_training_alone() -> None:
    task = class_task(3, train={"label_smoothing": 0.3})
    # 0.7 for the label, and 0.3 spread evenly over all three.
    logs = -LOGITS.log_softmax(1)
    smooth = [0.7 * float(logs[row, label]) + 0.1 * float(logs[row].sum()) for row, label in enumerate(LABELS)]
    assert loss_of(task) == pytest.approx(sum(smooth), abs=1e-6)
    assert loss_of(task, EVALUATION) == pytest.approx(sum(PLAIN), abs=1e-6)


def test_weights_by_class_name_and_balanced() -> None:
    task = class_task(3, arguments={"class_weights": {"class 0": 0.5, "class 2": 2}})
    assert loss_of(task) == pytest.approx(0.5 * PLAIN[0] + 2 * PLAIN[1], abs=1e-6)
    # The sum is divided by samples, whatever their weights.
    task = class_task(3, arguments={"class_weights": {"class 1": 9.0}})
    assert loss_of(task) == pytest.approx(sum(PLAIN), abs=1e-6)
    task = class_task(3, [6, 3, 1], arguments={"class_weights": "balanced"})
    assert loss_of(task) == pytest.approx(10 / 18 * PLAIN[0] + 10 / 3 * PLAIN[1], abs=1e-6)
    # A class without samples counts neither here nor there.
    shards = planned_manifest(4, samples_by_class=[6, 3, 1, 0])
    assert classification.balanced_weights(shards).tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3, 1.0])


def test_a_mixed_batch_takes_both_labels_by_their_shares() -> None:
    task = class_task(3, arguments={"class_weights": {"class 0": 2.0}})
    own = [PLAIN[0] * 2, PLAIN[1]]
    other = [-math.log(0.1), -math.log(0.25) * 2]
    expected = 0.9 * own[0] + 0.1 * other[0] + 0.4 * own[1] + 0.6 * other[1]
    assert loss_of(task, shares=torch.tensor([0.9, 0.4])) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("equal", "task.arguments.class_weights is 'equal'"),
        ({"class 0": 2.0, "cat": 1.0}, "names 'cat', which is no class"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        class_task(3, arguments={"class_weights": weights})
    assert words in caught.value.given and caught.value.allowed and caught.value.todo


# --- metrics, report and baseline over ranks --------------------------------------------------------------------------


@pytest.mark.parametrize("case", SIZES)
def test_metrics_are_by_definition_and_all_is_the_same_at_any_number_of_ranks(evaluations: Any, case: str) -> None:
    one, two, three = (evaluations[ranks][case] for ranks in (1, 2, 3))
    assert one == two == three
    _, labels, answers = split_of(case)
    metrics = one["metrics"]
    known = np.unique(labels)
    assert metrics["accuracy"] == pytest.approx((labels == answers).mean(), abs=1e-7)
    # A class without a sample is left out, though it is the answer to some.
    for name, score in (("f1_macro", f1), ("recall_macro", recall)):
        expected = np.mean([score(labels == place, answers == place) for place in known])
        assert metrics[name] == pytest.approx(expected, abs=1e-12), name


def test_the_report_has_the_confusion_and_every_class(evaluations: Any) -> None:
    _, labels, answers = split_of("classes")
    details = evaluations[2]["classes"]["details"]
    expected = confusion_matrix(labels, answers, CLASSES)
    cells = [[label, answer, n] for (label, answer), n in np.ndenumerate(expected) if n]
    assert [list(cell) for cell in details["confusion"]] == cells and details["confusion_left_out"] == 0
    for place, entry in enumerate(details["classes"]):
        counts = (expected[place].sum(), expected[:, place].sum(), expected[place, place])
        assert (entry["samples"], entry["predicted"], entry["right"]) == counts
    assert details["classes"][NOBODY]["samples"] == 0 < details["classes"][NOBODY]["predicted"]
    assert details["roc"] is None
    description, value = evaluations[2]["classes"]["baseline"]
    assert description == 'always "class 1"' and value == pytest.approx((labels == 1).mean())


def test_the_worst_samples_are_those_whose_label_got_least(evaluations: Any) -> None:
    logits, labels, answers = split_of("classes")
    worst = evaluations[3]["classes"]["details"]["worst"]
    probabilities = torch.from_numpy(logits).double().softmax(dim=1).numpy()
    own = probabilities[np.arange(len(labels)), labels]
    assert [entry["place"] for entry in worst] == np.argsort(own, kind="stable")[:WORST_SAMPLES].tolist()
    for entry in worst:
        place = entry["place"]
        assert (entry["shard"], entry["key"]) == ("test-0.tar", f"{place:032x}")
        assert (entry["label"], entry["predicted"]) == (labels[place], answers[place])
        assert entry["probability"] == pytest.approx(own[place], abs=1e-12)
        assert entry["predicted_probability"] == pytest.approx(probabilities[place].max(), abs=1e-12)


def test_two_classes_have_an_exact_roc_curve(evaluations: Any) -> None:
    """Logits have one decimal, so that several samples share a score."""
    logits, labels, _ = split_of("two classes")
    roc = evaluations[3]["two classes"]["details"]["roc"]
    scores = torch.from_numpy(logits).double().softmax(dim=1)[:, 1].numpy().round(12)
    assert roc["area"] == pytest.approx(roc_area(labels == 1, scores), abs=1e-12)
    assert np.array(roc["points"]) == pytest.approx(np.array(roc_curve(labels == 1, scores)), abs=1e-9)


def test_logits_that_are_no_numbers_are_reported_too() -> None:
    task = class_task(2)
    logits, labels = torch.tensor([[math.nan, 0.0], [200.0, -200.0]]), torch.tensor([1, 0])
    columns = {**task.outcomes(logits, {"label": labels}), "shard": ["a", "a"], "key": ["0", "1"]}
    details = task.report(columns, task.metrics())
    assert sum(entry["samples"] for entry in details["classes"]) == 2
    json.dumps(details, allow_nan=False)
