"""States of a stage by the exit code of its newest attempt."""

from __future__ import annotations

import pytest

from inspection.run.stages import _state
from inspection.run.view import AttemptView


@pytest.mark.parametrize(("code", "state"), [(75, "running"), (134, "running"), (70, "failed"), (2, "failed")])
def test_what_asks_for_another_attempt_has_not_failed_yet(code: int, state: str) -> None:
    attempt = AttemptView(name="a", started_at=1.0, ended_at=2.0, exit_code=code, error="", folder="f", log=None)
    assert _state(None, [], [attempt], over=False) == state
    # Nobody makes another attempt.
    assert _state(None, [], [attempt], over=True) == "failed"
