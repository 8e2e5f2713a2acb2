"""Hooks of tests: every phase has a function behind it, and nothing is wrapped unless the environment asks for it."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.hooks import PHASES
from tests.support.trace import TracedStep
from tests.support.traced import compare_steps

PROGRAM = """
import sys
from tests.support.hooks import PHASES, find, install_hooks
assert "torch" not in sys.modules
install_hooks(0, "a")
print(*sorted(phase for phase, (_, module, name) in PHASES.items() if hasattr(find(module, name)[2], "is_hook")))
"""


@pytest.mark.parametrize(("asked", "wrapped"), [({}, []), ({"SHARDLINE_PAUSE_AT": "forward:1"}, sorted(PHASES))])
def test_functions_are_wrapped_only_where_it_is_asked_for(asked: dict[str, str], wrapped: list[str]) -> None:
    environment: dict[str, Any] = {key: value for key, value in os.environ.items() if not key.startswith("SHARDLINE_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | asked, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == wrapped, done.stderr


def test_a_step_that_differs_is_named() -> None:
    """Else a resume that is not exact would pass for one that is."""
    one = {1: TracedStep(0, [3, 1], 0.5, 1), 2: TracedStep(0, [2, 0], 0.25, 1)}
    assert compare_steps(one, dict(one)) == []
    for other in (one | {2: TracedStep(0, [0, 2], 0.25, 1)}, one | {2: TracedStep(0, [2, 0], 0.26, 1)}, {1: one[1]}):
        assert compare_steps(one, other)[0].startswith("step 2 is the first that differs")
