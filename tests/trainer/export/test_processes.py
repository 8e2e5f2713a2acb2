from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import ShardlineError, TryAgain
from trainer.export.processes import run_step

# Functions of a step are found by their module's name, which a test module has not: these are the standard library's.


def test_a_step_is_a_process_whose_peak_is_its_own_or_that_of_one_it_started() -> None:
    ballast = b"1" * (400 << 20)
    pid, small = run_step(os.getpid)
    assert pid != os.getpid() and small.seconds > 0 and len(ballast) == 400 << 20
    content, large = run_step(operator.mul, b"x", 300 << 20)
    assert len(content) == 300 << 20
    # The server's modules are in both, the ballast of this process in none.
    assert 0 < small.peak_bytes < 350 << 20
    assert large.peak_bytes > small.peak_bytes + (250 << 20)
    _, cost = run_step(subprocess.check_call, [sys.executable, "-c", "b'x' * (300 << 20)"])
    assert 300 << 20 < cost.peak_bytes < 700 << 20


@pytest.mark.parametrize(
    ("function", "given", "error", "words"),
    [
        (int, "no number", ValueError, "invalid literal"),
        (open, os.devnull, TypeError, "cannot pickle"),
    ],
)
def test_what_a_step_raises_is_raised_here(
    function: Callable[..., Any], given: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        run_step(function, given)
    assert f"in the process of {function.__name__}:\nTraceback" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (signal.raise_signal, (signal.SIGKILL,), "was killed from outside by SIGKILL: most likely memory ran out"),
        (operator.mul, (b"x", 1 << 62), r"memory ran out in mul: MemoryError\(\)"),
    ],
)
def test_what_the_machine_lacks_is_worth_another_attempt(
    function: Callable[..., Any], given: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(TryAgain, match=words):
        run_step(function, *given)


def test_a_step_that_crashes_is_not_tried_again() -> None:
    with pytest.raises(ShardlineError, match="raise_signal died of SIGSEGV") as caught:
        run_step(signal.raise_signal, signal.SIGSEGV)
    assert caught.value.exit_code == 70
