"""Conditions as kfp's compiler writes them: read, or an error, never false by mistake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.pipelines.conditions import UnreadableCondition, evaluate

P = "inputs.parameter_values['p']"


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (f"{P} == 'yes'", "yes", True),
        (f"{P} == 'yes'", 'it\'s "no" && more', False),
        (f"{P} != ''", "x", True),
        (f"int({P}) >= 3", 3.0, True),
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
        (f"int({P}) > 0", 1e300),
        (f"{P}", "true"),
        (f"{P} == 'it's'", "x"),
        (f"{P} == 'x' 'y'", "x"),
        (f"{P} in ['x']", "x"),
        (f"{P} == 'x' || inputs.parameter_values['q'] == 'y'", "x"),
        ("", "x"),
    ],
)
def test_unreadable(condition: str, value: Any) -> None:
    with pytest.raises(UnreadableCondition):
        evaluate(condition, {"p": value})


def by_cel(condition: str, parameters: dict[str, Any]) -> Any:
    """What CEL says."""
    cel = pytest.importorskip("cel_expr_python.cel", reason="cel-expr-python is installed with the extra dev")
    environment = cel.NewEnv(variables={"inputs": cel.Type.DYN})
    return environment.compile(condition).eval(data={"inputs": {"parameter_values": parameters}}).value()


SIGNS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="'\\"), max_size=4)
WHOLE = st.integers(-(2**53), 2**53)
REAL = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6).map(lambda x: round(x, 3))


@st.composite
def comparisons(draw: st.DrawFn, name: str) -> tuple[str, Any]:
    """A comparison as kfp's compiler writes it, and the value of its parameter: of one type both."""
    parameter = f"inputs.parameter_values['{name}']"
    kind = draw(st.sampled_from(["text", "whole", "real", "flag", "whole of text"]))
    sign = draw(SIGNS)
    if kind == "text":
        return f"{parameter} {sign} '{draw(TEXTS)}'", draw(TEXTS)
    if kind == "flag":
        return f"{parameter} {sign} {draw(st.sampled_from(['true', 'false']))}", draw(st.booleans())
    if kind == "real":
        return f"double({parameter}) {sign} {draw(REAL):f}", draw(REAL)
    value = draw(WHOLE)
    return f"int({parameter}) {sign} {draw(WHOLE)}", str(value) if kind == "whole of text" else float(value)


@settings(max_examples=50, deadline=None)
@given(comparisons("p"), comparisons("q"), st.sampled_from(["&&", "||"]), st.booleans())
def test_on_like_types_it_says_what_cel_says(first: Any, second: Any, both: str, negate: bool) -> None:
    condition = f"{'!' if negate else ''}({first[0]}) {both} {second[0]}"
    parameters = {"p": first[1], "q": second[1]}
    assert evaluate(condition, parameters) is by_cel(condition, parameters)
