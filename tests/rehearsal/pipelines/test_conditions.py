"""Conditions as kfp's compiler writes them: read, or an error, never false by mistake."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.pipelines.conditions import UnreadableCondition, evaluate

P = "inputs.parameter_values['p']"


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (f"{P} == 'yes'", "yes", True),
        (f"{P} == 'yes'", 'it\'s "no" && more', False),
        (f"{P} != ''", "x", True),
        (f"{P} == true", True, True),
        (f"{P} == 'true'", "false", False),
        (f"int({P}) >= 3", 3.0, True),
        (f"int({P}) < -1", 3, False),
        (f"double({P}) > 2.5", "2.75", True),
        (f"!({P} == 'a') && !({P} == 'b')", "c", True),
        (f"{P} == 'a' || ({P} == 'b' && true)", "b", True),
        (f"'{'a'}' == {P}", "a", True),
    ],
)
def test_readable(condition: str, value: Any, expected: bool) -> None:
    assert evaluate(condition, {"p": value}) is expected


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (f"{P} == 'yes'", None),
        (f"{P} == 'yes'", 1.0),
        (f"{P} == true", "true"),
        (f"int({P}) > 1", "many"),
        (f"{P}", "true"),
        (f"{P} == 'it's'", "x"),
        (f"{P} == ", "x"),
        (f"({P} == 'x'", "x"),
        (f"{P} == 'x' 'y'", "x"),
        (f"{P} in ['x']", "x"),
        (f"{P} == 'x' || inputs.parameter_values['q'] == 'y'", "x"),
        ("", "x"),
    ],
)
def test_unreadable(condition: str, value: Any) -> None:
    with pytest.raises(UnreadableCondition):
        evaluate(condition, {"p": value})
