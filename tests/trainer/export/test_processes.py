from __future__ import annotations

import operator
import os
import signal

import pytest

from contracts.errors import DataError, TryAgain
from trainer.export.processes import Cost, run_step

# Functions of a step are found by their module's name, which a test module has not: these are the standard library's.


def test_a_step_is_a_process_of_its_own() -> None:
    pid, cost = run_step(os.getpid)
    assert pid != os.getpid()
    assert cost.seconds > 0


def test_the_peak_is_that_of_the_step_alone() -> None:
    ballast = bytearray(400 << 20)
    ballast[:: 1 << 12] = b"1" * len(ballast[:: 1 << 12])
    _, small = run_step(os.getpid)
    content, large = run_step(operator.mul, b"x", 300 << 20)
    assert len(content) == 300 << 20
    assert 0 < small.peak_bytes < 200 << 20
    assert large.peak_bytes > 300 << 20
    del ballast


def test_what_a_step_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        run_step(int, "no number")


def test_a_user_error_keeps_its_words() -> None:
    from contracts.artifacts import ExportManifest

    with pytest.raises(DataError, match="nothing finished there") as caught:
        run_step(ExportManifest.load, "file:///no/such/folder")
    assert caught.value.exit_code == 2
    assert "run the stage" in caught.value.todo


def test_a_step_that_is_killed_is_worth_another_attempt() -> None:
    with pytest.raises(TryAgain, match="memory ran out"):
        run_step(signal.raise_signal, signal.SIGKILL)


def test_costs_add_up() -> None:
    assert Cost(1.0, 5).add(Cost(2.0, 3)) == Cost(3.0, 5)
