"""Marks on the time axis of a training, against the account of the same events."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.goodput import account
from inspection.training import find_marks
from inspection.view import Mark

AT = 1_760_000_000.0
Events = list[dict[str, Any]]


def event(at: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": AT + at, "stage": "train", "attempt": "a", "event": kind, **fields}


def launched(at: float) -> Events:
    return [event(at, "start", launched_at=AT + at)]


def life(at: float, step: int = 0, name: str = "1", **fields: Any) -> Events:
    return [
        event(at, "life", life=name, started_at=AT + at, **fields),
        event(at + 1, "resume", life=name, step=step, ranks=2, nodes=1),
    ]


def spent(at: float, step: int, name: str = "1", /, **seconds: float) -> dict[str, Any]:
    return event(at, "spent", life=name, step=step, seconds=seconds)


def machine(at: float, *, preemptible: bool) -> dict[str, Any]:
    return event(at, "machine", node_rank=0, nodes=1, preemptible=preemptible)


def interrupted(at: float) -> dict[str, Any]:
    return event(at, "interrupted", signal="SIGINT")


def stopped(at: float, step: int, name: str = "1", *, preempted: bool = True) -> dict[str, Any]:
    return event(at, "stop", life=name, step=step, preempted=preempted, cause="SIGTERM")


def exited(at: float, code: int) -> dict[str, Any]:
    return event(at, "exit", exit_code=code, launched_at=AT, wall_s=at)


def finished(at: float) -> dict[str, Any]:
    return event(at, "finish", uri="u", made="m")


def of_kind(attempts: dict[str, Events], kind: str) -> list[Mark]:
    return [mark for mark in find_marks(attempts) if mark.kind == kind]


LAST = [*launched(500), *life(501, 10), spent(509, 20, step=5.0), finished(510)]
BEGAN = [*launched(0), *life(2), spent(10, 10, step=7.0)]
KILLED = [*BEGAN, exited(12, -9)]
FAULT = [*BEGAN, event(11, "error", exit_code=70, message="boom"), exited(12, 70)]
HERE = [*launched(0), machine(1, preemptible=False), *life(2), spent(10, 10, step=7.0)]
CLOUD = [*launched(0), machine(1, preemptible=True), *life(2), spent(10, 10, step=7.0)]
# What the account counts, and what the mark of the first attempt's end says.
CAUSES: dict[str, tuple[Events, str, str]] = {
    "Ctrl-C, agreed": ([*HERE, interrupted(11), stopped(12, 10), exited(13, 75)], "interruption", "by SIGINT"),
    "Ctrl-C, killed after it": ([*HERE, interrupted(11)], "interruption", "interrupted by SIGINT"),
    "SIGTERM to ranks here": ([*HERE, stopped(11, 10), exited(12, 75)], "interruption", "SIGTERM"),
    "SIGTERM to the command here": ([*HERE, exited(12, 143)], "interruption", "ended by SIGTERM"),
    "kill -9 of all here": (HERE, "kill", "killed, or out of memory"),
    "SIGTERM by a platform": ([*CLOUD, stopped(11, 10), exited(12, 75)], "preemption", "SIGTERM"),
    "taken by a platform": (CLOUD, "preemption", "without a word"),
    "out of memory in a cloud": ([*CLOUD, exited(12, -9)], "crash", "-9"),
}


@pytest.mark.parametrize("first", CAUSES)
def test_a_stop_has_the_cause_that_it_had(first: str) -> None:
    events, kind, words = CAUSES[first]
    attempts = {first: events, "last": [*LAST[:1], machine(500, preemptible=events[1:2] == CLOUD[1:2]), *LAST[1:]]}
    record = account(attempts.values())
    counted = {"preemption": record.preemptions, "interruption": record.interruptions, "kill": record.kills}
    counted["crash"] = record.crashes
    assert counted == {**dict.fromkeys(counted, 0), kind: 1}
    (mark,) = of_kind(attempts, kind)
    assert words in mark.text


def test_the_newest_attempt_may_go_on() -> None:
    kinds = [
        [mark.kind for mark in find_marks(attempts)] for attempts in ({"on": BEGAN}, {"a": BEGAN, "on": LAST[:-1]})
    ]
    assert kinds == [["start"], ["start", "preemption", "resume"]]


def test_an_end_says_its_exit_code_and_its_reason() -> None:
    (killed,) = of_kind({"killed": KILLED, "last": LAST}, "crash")
    assert "exit code -9 (attempt killed)" in killed.text and killed.step == 10
    (fault,) = of_kind({"a": FAULT, "last": LAST}, "crash")
    assert "exit code 70: boom" in fault.text and fault.time == AT + 12


def test_a_checkpoint_is_one_that_was_committed() -> None:
    events = [
        *launched(0),
        *life(2, tells=["checkpoint"]),
        spent(10, 10, step=7.0, checkpoint=0.1),
        spent(15, 20, step=5.0, checkpoint=0.1),
        # Written beside steps; its seconds are those until it is durable.
        event(16, "checkpoint", life="1", step=10, seconds=6.5),
        event(18, "checkpoint", life="1", step=25, seconds=0.5),
        stopped(19, 25),
    ]
    marks = of_kind({"a": events, "last": LAST}, "checkpoint")
    assert [(mark.time - AT, mark.step) for mark in marks] == [(16, 10), (18, 25)]
    assert marks[0].text == "checkpoint at step 10, durable after 6.500 s"
    (preemption,) = of_kind({"a": events, "last": LAST}, "preemption")
    assert preemption.step == 25
    # None was: what was copied was lost with the machine.
    assert of_kind({"a": events[:5], "last": LAST}, "checkpoint") == []
    assert [mark.step for mark in find_marks({"a": events}, best_step=25) if mark.kind == "best"] == [25]


@pytest.mark.parametrize("value", [float("nan"), "x"])
def test_numbers_that_are_none_end_nothing(value: Any) -> None:
    events = [
        *launched(0),
        *life(2),
        event(3, "progress", unit="steps", done=value, total=9),
        event(4, "checkpoint", life="1", step=value, seconds=value),
        exited(5, value),
    ]
    assert [mark.kind for mark in find_marks({"a": events}, best_step=3)] == ["start", "checkpoint", "crash"]
    assert of_kind({"a": events}, "checkpoint")[0].step is None
