from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys

import pytest

from contracts.errors import DataError, ShardlineError, TryAgain
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
    # The server's modules are in both, the ballast of this process in none.
    assert 0 < small.peak_bytes < 350 << 20
    assert large.peak_bytes > small.peak_bytes + (250 << 20)
    del ballast


def test_the_peak_is_that_of_the_largest_process_of_the_step() -> None:
    _, cost = run_step(subprocess.check_call, [sys.executable, "-c", "b'x' * (300 << 20)"])
    assert 300 << 20 < cost.peak_bytes < 700 << 20


def test_what_a_step_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        run_step(int, "no number")
    assert "in the process of int:\nTraceback" in caught.value.__notes__[0]


def test_what_cannot_be_sent_back_is_told() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        run_step(open, os.devnull)


def test_a_user_error_keeps_its_words() -> None:
    from contracts.artifacts import ExportManifest

    with pytest.raises(DataError, match="nothing finished there") as caught:
        run_step(ExportManifest.load, "file:///no/such/folder")
    assert caught.value.exit_code == 2
    assert "run the stage" in caught.value.todo


def test_a_step_that_is_killed_is_worth_another_attempt() -> None:
    with pytest.raises(TryAgain, match="raise_signal was killed from outside by SIGKILL: most likely memory ran out"):
        run_step(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(TryAgain, match="SIGTERM"):
        run_step(signal.raise_signal, signal.SIGTERM)


def test_a_step_without_memory_is_worth_another_attempt() -> None:
    with pytest.raises(TryAgain, match=r"memory ran out in mul: MemoryError\(\)"):
        run_step(operator.mul, b"x", 1 << 62)


def test_a_step_that_crashes_is_not_tried_again() -> None:
    with pytest.raises(ShardlineError, match="raise_signal died of SIGSEGV") as caught:
        run_step(signal.raise_signal, signal.SIGSEGV)
    assert caught.value.exit_code == 70
    with pytest.raises(ShardlineError, match="_exit ended with exit code 3") as caught:
        run_step(os._exit, 3)
    assert caught.value.exit_code == 70


def test_costs_add_up() -> None:
    assert Cost(1.0, 5).add(Cost(2.0, 3)) == Cost(3.0, 5)
