"""Early stopping as a function of the evaluations so far."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import Direction, EarlyStopping, Headline
from contracts.config import EarlyStoppingSection
from trainer.evaluate import Evaluation
from trainer.supervise.limits import describe_stop, is_over, judge

DIRECTIONS: dict[str, Direction] = {"accuracy": "max", "distance": "min"}


def stopped_after(section: EarlyStoppingSection, values: Sequence[float]) -> int | None:
    """Return the number of evaluations after which training ends."""
    state = EarlyStopping()
    for number, value in enumerate(values, 1):
        # What is not watched would say the opposite.
        other = -value
        loss, metrics = (value, {}) if section.metric == "validation_loss" else (other, DIRECTIONS)
        headline = Headline(metric="accuracy", direction="max")
        evaluation = Evaluation(10, loss, dict.fromkeys(metrics, value), headline, DIRECTIONS)
        state = judge(EarlyStopping.model_validate_json(state.model_dump_json()), section, evaluation)
        if is_over(state, section):
            assert f"{section.metric} was not better than {state.best:.6g}" in describe_stop(state, section)
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
