"""Early stopping as a function of the evaluations so far."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import Direction, EarlyStopping, Headline
from contracts.config import EarlyStoppingSection
from contracts.errors import ConfigError
from trainer.evaluate import Evaluation
from trainer.supervise.limits import describe_stop, is_over, judge, require_validation

DIRECTIONS: dict[str, Direction] = {"accuracy": "max", "distance": "min"}


def stopped_after(section: EarlyStoppingSection, values: Sequence[float]) -> int | None:
    """Return the number of evaluations after which training ends."""
    seen = EarlyStopping()
    for number, value in enumerate(values, 1):
        # What is not watched would say the opposite.
        other = -value
        loss, metrics = (value, {}) if section.metric == "validation_loss" else (other, DIRECTIONS)
        headline = Headline(metric="accuracy", direction="max")
        found = Evaluation(10, loss, dict.fromkeys(metrics, value), headline, DIRECTIONS)
        seen = judge(EarlyStopping.model_validate_json(seen.model_dump_json()), section, found)
        if is_over(seen, section):
            assert f"{section.metric} was not better than {seen.best:.6g}" in describe_stop(seen, section)
            return number
    return None


@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.integers(1, 4),
    st.sampled_from([("validation_loss", 1), ("validation_distance", 1), ("validation_accuracy", -1)]),
)
def test_it_is_that_of_its_definition(values: list[int], patience: int, watched: tuple[str, int]) -> None:
    """Against a plain loop over the whole history; what a checkpoint keeps is enough."""
    metric, sign = watched
    section = EarlyStoppingSection(metric=metric, patience=patience)
    better = []
    for number, value in enumerate(values):
        if not better or sign * value < sign * values[better[-1]]:
            better.append(number)
        if number - better[-1] == patience:
            assert stopped_after(section, [float(one) for one in values]) == number + 1
            return
    assert stopped_after(section, [float(one) for one in values]) is None


def test_it_needs_a_validation_split_and_a_number() -> None:
    require_validation(None, 0)
    require_validation(EarlyStoppingSection(), 1)
    with pytest.raises(ConfigError, match="no validation split"):
        require_validation(EarlyStoppingSection(), 0)
    assert not is_over(None, EarlyStoppingSection()) and not is_over(EarlyStopping(since_best=9), None)
    section = EarlyStoppingSection(metric="validation_accuracy", patience=2)
    seen = EarlyStopping(best=None, since_best=2)
    assert is_over(seen, section)
    assert "validation_accuracy came to no number in 2 evaluations" in describe_stop(seen, section)
