from __future__ import annotations

from typing import Literal

import pytest

from contracts.artifacts import Gate, Headline
from trainer.export.gates.scores import Scores, judge_scores


def judge(direction: Literal["min", "max"], fp32: float | None, int8: float | None) -> Gate:
    headline = Headline(metric="score", direction=direction)
    reference, found = (Scores({} if value is None else {"score": value}, headline) for value in (fp32, int8))
    return judge_scores(precision="int8", reference=reference, found=found, samples=400, ran="a test")


@pytest.mark.parametrize(
    ("direction", "fp32", "sound", "broken"),
    [
        ("max", 0.9, 0.8951, 0.8949),  # a share: 0.005 of it
        ("max", 40.0, 39.81, 39.79),  # no share: half a percent
        ("min", 2.0, 2.009, 2.011),
        ("min", 0.2, 0.2009, 0.2011),
    ],
)
def test_what_a_smaller_precision_may_lose(
    direction: Literal["min", "max"], fp32: float, sound: float, broken: float
) -> None:
    assert judge(direction, fp32, sound).status == "passed"
    gate = judge(direction, fp32, broken)
    assert (gate.name, gate.status) == ("metric", "failed")
    assert f"score is {broken:.6g}, and {fp32:.6g} in fp32" in gate.reason
    assert gate.figures["loss"] > gate.limits["loss"]  # type: ignore[operator]
    better = 2 * fp32 - broken
    assert judge(direction, fp32, better).status == "passed"


@pytest.mark.parametrize(("fp32", "int8"), [(None, 0.9), (0.9, None)])
def test_a_metric_that_is_no_number_fails(fp32: float | None, int8: float | None) -> None:
    gate = judge("max", fp32, int8)
    assert (gate.status, gate.reason) == ("failed", "score is no finite number")
