"""Metrics of a regression, held against scikit-learn's; over ranks in tests/trainer/tasks/test_metrics.py."""

import math

import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from trainer.tasks.tabular.metrics import make_metrics


def values_of(values: list[float], targets: list[float], near: float = 0.0) -> dict[str, float]:
    metrics = make_metrics(near)
    for metric in metrics.values():
        for one, other in zip(values, targets, strict=True):
            metric.update(torch.tensor([one]).double(), torch.tensor([other]).double())
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.mark.parametrize("near", [0.0, 3.0, 1e6])
@pytest.mark.parametrize(
    ("values", "targets"),
    [
        ([1.0, 2.5, 3.0, -4.0], [1.5, 2.0, 8.0, -3.0]),
        ([9.0, -9.0], [1.0, 2.0]),
        ([7.0, 7.0, 7.0], [7.0, 7.0, 7.0]),
        ([7.0, 7.5, 7.0], [7.0, 7.0, 7.0]),
    ],
)
def test_they_are_scikit_learns(values: list[float], targets: list[float], near: float) -> None:
    found = values_of(values, targets, near)
    assert found["r2"] == pytest.approx(r2_score(targets, values), abs=1e-9 + near * 1e-12)
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, values))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(targets, values))


def test_one_sample_has_no_variance() -> None:
    found = values_of([1.0], [2.0])
    assert math.isnan(found["r2"]) and found["mae"] == 1.0
