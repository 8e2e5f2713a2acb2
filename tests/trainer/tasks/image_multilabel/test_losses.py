"""Losses of several labels, against values computed by hand."""

import math
from typing import Any

import pytest
import torch

from contracts.errors import ConfigError
from tests.trainer.tasks.image_multilabel.made import labels_task, manifest_of
from trainer.tasks.image_multilabel.losses import positive_weights
from trainer.tasks.protocol import Mode

TRAINING, EVALUATION = Mode(training=True), Mode(training=False)
# Sigmoids of these are (0.75, 0.2) and (0.5, 0.9).
LOGITS = torch.logit(torch.tensor([[0.75, 0.2], [0.5, 0.9]], dtype=torch.float64)).float()
LABELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
# Of each pair: minus the logarithm of the probability of what is right.
PAIRS = [[-math.log(0.75), -math.log(0.8)], [-math.log(0.5), -math.log(0.9)]]
PLAIN = sum(map(sum, PAIRS)) / 2


def task_of(**options: Any) -> Any:
    return labels_task(manifest_of(2), **options)


def loss_of(task: Any, mode: Mode = TRAINING, **more: Any) -> float:
    loss, count = task.loss(LOGITS, {"label": LABELS, **more}, mode)
    assert count == 2 and loss.ndim == 0
    return float(loss)


def test_it_is_summed_over_samples_and_averaged_over_classes() -> None:
    assert loss_of(task_of()) == pytest.approx(PLAIN, abs=1e-6)


def test_targets_are_smoothed_in_training_alone() -> None:
    task = task_of(sections={"train": {"label_smoothing": 0.2}})
    # 0.9 for what is right, 0.1 for what is not.
    wrong = [[-math.log(0.25), -math.log(0.2)], [-math.log(0.5), -math.log(0.1)]]
    smooth = sum(0.9 * r + 0.1 * w for rs, ws in zip(PAIRS, wrong, strict=True) for r, w in zip(rs, ws, strict=True))
    assert loss_of(task) == pytest.approx(smooth / 2, abs=1e-6)
    assert loss_of(task, EVALUATION) == pytest.approx(PLAIN, abs=1e-6)


def test_the_focal_loss_weighs_by_what_is_missing_to_certainty() -> None:
    expected = [0.25**2 * PAIRS[0][0], 0.2**2 * PAIRS[0][1], 0.5**2 * PAIRS[1][0], 0.1**2 * PAIRS[1][1]]
    assert loss_of(task_of(loss="focal")) == pytest.approx(sum(expected) / 2, abs=1e-6)
    weighted = task_of(loss="focal", class_weights={"class 0": 3.0})
    assert loss_of(weighted) == pytest.approx((sum(expected) + 2 * expected[0]) / 2, abs=1e-6)


def test_weights_are_of_what_is_of_a_class() -> None:
    task = task_of(class_weights={"class 1": 5.0})
    assert loss_of(task) == pytest.approx(PLAIN + 4 * PAIRS[1][1] / 2, abs=1e-6)


def test_balanced_weights_are_samples_outside_over_samples_inside() -> None:
    shards = manifest_of(4, samples=40)
    train = shards.splits["train"].model_copy(update={"samples_by_class": [10, 30, 0, 40]})
    shards = shards.model_copy(update={"splits": {**shards.splits, "train": train}})
    weights = positive_weights("balanced", shards.classes, shards)
    assert weights is not None and weights.tolist() == pytest.approx([3.0, 1 / 3, 1.0, 1.0])
    assert positive_weights("", shards.classes, shards) is None


@pytest.mark.parametrize("arguments", [{}, {"loss": "focal"}, {"class_weights": {"class 0": 2.0}}])
def test_a_mixed_batch_takes_both_sets_of_labels_by_their_shares(arguments: dict[str, Any]) -> None:
    task, shares = task_of(**arguments), torch.tensor([0.9, 0.4])

    def alone(row: int, labels: int) -> float:
        batch = {"label": LABELS[labels : labels + 1]}
        return float(task.loss(LOGITS[row : row + 1], batch, TRAINING)[0])

    expected = 0.9 * alone(0, 0) + 0.1 * alone(0, 1) + 0.4 * alone(1, 1) + 0.6 * alone(1, 0)
    assert loss_of(task, shares=shares) == pytest.approx(expected, abs=1e-6)


def furthest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (torch.sigmoid(logits) - labels).abs().amax(dim=1)


def every_pair(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits - labels).abs()


def test_a_loss_of_ones_own_is_summed() -> None:
    assert loss_of(task_of(loss=f"{__name__}:furthest")) == pytest.approx(0.25 + 0.5, abs=1e-6)
    with pytest.raises(ConfigError, match=r"returned torch.float32 \(2, 2\) for labels \(2, 2\)") as caught:
        loss_of(task_of(loss=f"{__name__}:every_pair"))
    assert "a loss for each sample" in caught.value.allowed


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"loss": "cross_entropy"}, "task.arguments.loss is 'cross_entropy'"),
        ({"loss": f"{__name__}:furthest", "class_weights": "balanced"}, "class_weights is set"),
        ({"class_weights": {"cat": 2.0}}, "names 'cat', which is no class"),
        ({"class_weights": {"class 0": 0}}, "class_weights.class 0 is 0"),
        ({"class_weights": "even"}, "class_weights is 'even'"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: dict[str, Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task_of(**arguments)
    assert given in caught.value.given and caught.value.exit_code == 2
