"""Numbers, units and times as text."""

import pytest

from inspection.pages.quantities import NBSP, metric_number, seconds, usd


def plain(text: str) -> str:
    return text.replace(NBSP, " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(179.7, "3 min 0 s"), (119.97, "2 min 0 s"), (7199.7, "2 h"), (71.8, "71.8 s"), (0.0, "0 s"), (90_000, "25 h")],
)
def test_times_are_rounded_before_they_are_split(value: float, text: str) -> None:
    assert plain(seconds(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00004, "4.000e-05"), (0.9943, "0.9943"), (12.3456, "12.35"), (12345.6, "12,346"), (0.0, "0"), (-0.5, "-0.5")],
)
def test_a_metric_keeps_four_digits_however_small(value: float, text: str) -> None:
    assert metric_number(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.3, "1.30 USD"), (0.0044, "0.0044 USD")])
def test_money_shows_what_is_less_than_a_cent(value: float, text: str) -> None:
    assert plain(usd(value)) == text
