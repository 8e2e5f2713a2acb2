"""The state machine of stages, as events tell it."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError, ErrorDocument
from inspection.stages import StageTrace


def make_event(event: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"time": time, "stage": "train", "attempt": "a", "event": event, **fields}


START = make_event("start", 11.0, launched_at=10.0, pid=1)
READY = make_event("ready", 14.0)
FINISH = make_event("finish", 30.0, uri="file:///f", made="weights")


def make_exit(exit_code: int, wall_s: float) -> dict[str, Any]:
    return make_event("exit", 10 + wall_s, exit_code=exit_code, launched_at=10.0, wall_s=wall_s)


def make_trace(folder: Path, *events: dict[str, Any]) -> StageTrace:
    trace = StageTrace("train", folder)
    for event in events:
        trace.apply(event)
    return trace


def test_a_document_of_a_process_that_failed_afterwards_does_not_count(tmp_path: Path) -> None:
    trace = make_trace(tmp_path, START, READY, FINISH, make_exit(1, 21.0))
    assert trace.record(None).state == "failed"
    assert trace.record(None).uri is None


def test_the_stages_own_error_comes_first(tmp_path: Path) -> None:
    error = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
    (tmp_path / "error.json").write_text(error.model_dump_json())
    assert make_trace(tmp_path, START, make_exit(2, 1.0)).find_error() == error
    # A rank that failed was started again, and the stage went on to its end.
    assert make_trace(tmp_path, START, FINISH, make_exit(0, 1.0)).find_error() is None


@pytest.mark.parametrize(("exit_code", "expected", "text"), [(-9, 75, "out of memory"), (1, 70, "exit code 1")])
def test_a_stage_that_left_no_error(tmp_path: Path, exit_code: int, expected: int, text: str) -> None:
    error = make_trace(tmp_path, START, make_exit(exit_code, 1.0)).find_error()
    assert error is not None
    assert error.exit_code == expected
    assert text in error.message
    assert str(tmp_path / "log.txt") in error.message


@pytest.mark.parametrize(("code", "state"), [(75, "running"), (134, "running"), (70, "failed"), (2, "failed")])
def test_what_asks_for_another_attempt_has_not_failed_yet(tmp_path: Path, code: int, state: str) -> None:
    trace = make_trace(tmp_path, START, make_exit(code, 1.0))
    assert trace.state(over=False) == state
    # Nobody makes another attempt.
    assert trace.state(over=True) == "failed"
    trace.apply(make_event("start", 20.0, launched_at=20.0))
    assert trace.state(over=False) == "running"


@pytest.mark.parametrize(
    ("events", "going_on", "over"),
    [
        ([], "waiting", "not started"),
        ([START], "running", "stopped"),
        ([START, make_event("interrupted", 12.0, signal="SIGINT"), make_exit(-15, 3.0)], "failed", "interrupted"),
        ([START, make_event("error", 12.0, exit_code=2, message="m")], "failed", "failed"),
        ([START, FINISH], "done", "done"),
        ([START, make_event("reused", 12.0, uri="file:///f")], "reused", "reused"),
        # A second attempt of the run that made it.
        ([START, FINISH, START, make_event("reused", 32.0, uri="file:///f")], "done", "done"),
        # Of another machine, behind the end.
        ([START, FINISH, make_event("error", 31.0, exit_code=75, message="m")], "done", "done"),
        # Of another machine, before the end.
        ([START, make_event("error", 29.0, exit_code=75, message="m"), FINISH], "done", "done"),
    ],
)
def test_a_stage_has_one_state(tmp_path: Path, events: list[dict[str, Any]], going_on: str, over: str) -> None:
    trace = make_trace(tmp_path, *events)
    assert (trace.state(over=False), trace.state(over=True)) == (going_on, over)
