"""When a checkpoint is due: by steps, or by the clock of the first rank."""

import time

import pytest

from contracts.config import CheckpointSection
from contracts.config.load import parse_config
from contracts.errors import ConfigError
from trainer.checkpoint.manager import Schedule


def test_steps_decide_or_the_clock_of_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = Schedule(CheckpointSection(every_steps=3), is_first=True)
    assert by_steps.propose() == 0
    assert [step for step in range(1, 10) if by_steps.is_due(step)] == [3, 6, 9]
    assert CheckpointSection(every_s=7).interval_s == 7
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first, other = (Schedule(CheckpointSection(), is_first=is_first) for is_first in (True, False))
    for seconds, proposed in ((0.0, 0), (299.0, 0), (300.0, 1), (400.0, 1)):
        now = 1000.0 + seconds
        assert (first.propose(), other.propose()) == (proposed, 0)
    for schedule in (first, other):
        schedule.agree(1, saves=0)
        assert schedule.is_due(7)
        schedule.saved()
        assert not schedule.is_due(8)
        # Proposed before the checkpoint that has just begun.
        schedule.agree(1, saves=0)
        assert not schedule.is_due(9)
    # One that is skipped, since the one before is still being written, is not tried again at the next vote.
    assert first.propose() == 0
    now += 300.0
    assert first.propose() == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"every_steps": 5, "every_s": 5.0}, "both set"),
        ({"best_metric": "best of all"}, "best_metric"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"checkpoint": values}, where="test")
