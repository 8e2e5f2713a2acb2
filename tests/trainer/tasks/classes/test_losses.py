"""Losses of image classification, against values computed by hand."""

import math
from typing import Any

import pytest
import torch

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.own_code import append_code
from tests.conftest import OWN_CODE
from tests.trainer.tasks.for_tests import image_task, planned_manifest
from trainer.tasks.classes.losses import class_weights, make_loss, without_class_names
from trainer.tasks.protocol import Mode

TRAINING, EVALUATION = Mode(training=True), Mode(training=False)
# Softmax of these is (0.7, 0.2, 0.1) and (0.25, 0.5, 0.25).
LOGITS = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]))
LABELS = torch.tensor([0, 2])
PLAIN = torch.tensor([-math.log(0.7), -math.log(0.25)])


def loss_of(task: Any, mode: Mode = TRAINING, **more: Any) -> float:
    loss, count = task.loss(LOGITS, {"label": LABELS, **more}, mode)
    assert count == 2 and loss.ndim == 0
    return float(loss)


def test_cross_entropy_is_summed_and_smoothed_in_training_alone() -> None:
    config = RunConfig.model_validate({"train": {"label_smoothing": 0.3}})
    task = image_task(3, train=config.train)
    # 0.7 for the label, and 0.3 spread evenly over all three.
    logs = -LOGITS.log_softmax(1)
    smooth = [0.7 * float(logs[row, label]) + 0.1 * float(logs[row].sum()) for row, label in enumerate(LABELS)]
    assert loss_of(task) == pytest.approx(sum(smooth), abs=1e-6)
    assert loss_of(task, EVALUATION) == pytest.approx(float(PLAIN.sum()), abs=1e-6)


@pytest.mark.parametrize("mode", [TRAINING, EVALUATION])
def test_the_focal_loss_weighs_by_what_is_missing_to_certainty(mode: Mode) -> None:
    expected = 0.3**2 * -math.log(0.7) + 0.75**2 * -math.log(0.25)
    assert loss_of(image_task(3, loss="focal"), mode) == pytest.approx(expected, abs=1e-6)
    weighted = image_task(3, loss="focal", class_weights={"class 2": 3.0})
    expected = 0.3**2 * -math.log(0.7) + 3 * 0.75**2 * -math.log(0.25)
    assert loss_of(weighted, mode) == pytest.approx(expected, abs=1e-6)


def test_class_weights_that_are_given() -> None:
    task = image_task(3, class_weights={"class 0": 0.5, "class 2": 2})
    assert loss_of(task) == pytest.approx(0.5 * -math.log(0.7) + 2 * -math.log(0.25), abs=1e-6)
    # Nothing but the classes of the batch: the sum is divided by samples, whatever their weights.
    assert loss_of(image_task(3, class_weights={"class 1": 9.0})) == pytest.approx(float(PLAIN.sum()), abs=1e-6)


def test_balanced_class_weights_are_those_of_the_training_split() -> None:
    """Samples / (classes with samples * samples of the class); each class weighs the same in an epoch."""
    shards = planned_manifest(4, samples_by_class=[6, 3, 1, 0])
    weights = class_weights("balanced", shards.classes, shards)
    assert weights is not None
    assert weights.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3, 1.0])
    task = image_task(planned_manifest(3, samples_by_class=[6, 3, 1]), class_weights="balanced")
    assert loss_of(task) == pytest.approx(10 / 18 * -math.log(0.7) + 10 / 3 * -math.log(0.25), abs=1e-6)
    assert class_weights("", shards.classes, shards) is None


@pytest.mark.parametrize("arguments", [{}, {"loss": "focal"}, {"class_weights": {"class 0": 2.0}}])
def test_a_mixed_batch_takes_both_labels_by_their_shares(arguments: dict[str, Any]) -> None:
    task = image_task(3, **arguments)
    shares = torch.tensor([0.9, 0.4])
    alone = make_loss(
        arguments.get("loss", "cross_entropy"),
        smoothing=0.0,
        weights=torch.tensor([2.0, 1, 1]) if "class_weights" in arguments else None,
    )
    own, other = alone(LOGITS, LABELS), alone(LOGITS, torch.tensor([2, 0]))
    expected = 0.9 * own[0] + 0.1 * other[0] + 0.4 * own[1] + 0.6 * other[1]
    assert loss_of(task, shares=shares) == pytest.approx(float(expected), abs=1e-6)


def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 1 - logits.gather(1, labels[:, None])[:, 0]


def mean(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return margin(logits, labels).mean()


def integers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return labels


def number(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return 3.0


def test_a_loss_of_ones_own_that_fails_is_named_with_its_line() -> None:
    append_code(OWN_CODE)
    words = r"loss models_for_tests:failing_loss failed: IndexError: Target 10. .*\(models_for_tests\.py, line \d+\)"
    with pytest.raises(ConfigError, match=words) as caught:
        loss_of(image_task(3, loss="models_for_tests:failing_loss"))
    assert caught.value.todo == "correct the loss"


def test_a_loss_of_ones_own_is_summed_and_weighted() -> None:
    expected = [1 - math.log(0.7), 1 - math.log(0.25)]
    assert loss_of(image_task(3, loss=f"{__name__}:margin")) == pytest.approx(sum(expected), abs=1e-6)
    weighted = image_task(3, loss=f"{__name__}:margin", class_weights={"class 0": 3})
    assert loss_of(weighted) == pytest.approx(3 * expected[0] + expected[1], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "found"),
    [("mean", r"torch.float32 \(\)"), ("integers", r"torch.int64 \(2,\)"), ("number", "float")],
)
def test_a_loss_of_ones_own_that_is_none_by_sample_is_refused(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=rf"{__name__}:{name} returned {found} for labels \(2,\)") as caught:
        loss_of(image_task(3, loss=f"{__name__}:{name}"))
    assert "[B]" in caught.value.allowed and "reduction='none'" in caught.value.todo


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": "hinge"}, "task.arguments.loss is 'hinge'"),
        ({"loss": "no_such_module:loss"}, "task.arguments.loss 'no_such_module:loss'"),
        ({"class_weights": "equal"}, "task.arguments.class_weights is 'equal'"),
        ({"class_weights": {"class 0": 2.0, "cat": 1.0}}, "names 'cat', which is no class"),
        ({"class_weights": {"class 1": 0}}, "task.arguments.class_weights.class 1 is 0"),
        ({"class_weights": {"class 1": True}}, "task.arguments.class_weights.class 1 is True"),
        ({"class_weights": {"class 1": math.inf}}, "task.arguments.class_weights.class 1 is inf"),
        ({"class_weights": {"class 1": math.nan}}, "task.arguments.class_weights.class 1 is nan"),
        ({"class_weights": {"class 1": "2"}}, "task.arguments.class_weights.class 1 is '2'"),
    ],
)
def test_arguments_that_make_no_loss_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        image_task(3, **arguments)
    assert words in caught.value.given and caught.value.allowed and caught.value.todo


def test_factors_by_class_name_wait_until_the_classes_are_known() -> None:
    named = RunConfig.model_validate({"task": {"arguments": {"loss": "focal", "class_weights": {"cat": 2.0}}}})
    assert without_class_names(named).task.arguments == {"loss": "focal", "class_weights": ""}
    balanced = RunConfig.model_validate({"task": {"arguments": {"class_weights": "balanced"}}})
    assert without_class_names(balanced) is balanced
