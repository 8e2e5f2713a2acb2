"""The interval is Young and Daly's, from what was measured, never shorter than a checkpoint takes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.config import CheckpointSection
from contracts.config.load import parse_config
from contracts.errors import ConfigError
from trainer.checkpoint.interval import FIRST_INTERVAL_S, Costs, interval_s, optimal_interval_s, steps_until_due


def test_the_formula() -> None:
    # Two seconds a checkpoint, a failure every four hours: sqrt(2 * 2 * 14400) = 240.
    assert optimal_interval_s(2, 4 * 3600, 10) == 240
    assert optimal_interval_s(2, 4 * 3600, 900) == 900


@given(st.floats(0.02, 100), st.floats(60, 1e6))
def test_it_loses_least(cost: float, mean: float) -> None:
    """Of all intervals: what checkpoints cost plus what failures lose, each per second."""
    best = optimal_interval_s(cost, mean, 0)

    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / mean

    assert all(lost(best) <= lost(best * factor) * (1 + 1e-9) for factor in (0.5, 0.9, 1.1, 2))


def test_the_cost_is_the_stall_and_the_slower_steps() -> None:
    costs = Costs()
    assert (costs.cost_s, costs.step_s, costs.durable_s) == (None, None, 0.0)
    for _ in range(10):
        costs.step_took(0.1, beside_writing=False)
    costs.stalled(0.05)
    assert costs.cost_s == 0.05
    for _ in range(4):
        costs.step_took(0.15, beside_writing=True)
    costs.became_durable(0.7)
    assert costs.cost_s == pytest.approx(0.05 + 4 * 0.05)
    assert costs.durable_s == 0.7
    assert costs.step_s == 0.1
    # Steps beside the next one are its own; faster ones are noise, not a gain.
    costs.step_took(0.01, beside_writing=True)
    costs.became_durable(0.9)
    assert costs.cost_s == pytest.approx(0.05 + 4 * 0.05 / 2)


def test_what_is_given_wins() -> None:
    costs = Costs()
    assert interval_s(CheckpointSection(every_s=7), costs) == 7
    assert interval_s(CheckpointSection(), costs) == FIRST_INTERVAL_S
    costs.stalled(2)
    assert interval_s(CheckpointSection(), costs) == FIRST_INTERVAL_S
    costs.became_durable(1)
    assert interval_s(CheckpointSection(), costs) == pytest.approx(optimal_interval_s(2, 36000, 1))
    # What cannot be measured costs something all the same.
    free = Costs()
    free.stalled(0)
    free.became_durable(0.001)
    assert math.isfinite(interval_s(CheckpointSection(), free))
    assert interval_s(CheckpointSection(), free) > 1


def test_in_steps() -> None:
    assert steps_until_due(10, 0, 1) == 10
    assert steps_until_due(10, 9.5, 1) == 1
    assert steps_until_due(10, 60, 1) == 1
    assert steps_until_due(10, 0, 3) == 4
    assert steps_until_due(10, 0, 0) >= 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"every_steps": 5, "every_s": 5.0}, "both set"),
        ({"best_metric": "best of all"}, "best_metric"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"checkpoint": values}, where="test")
