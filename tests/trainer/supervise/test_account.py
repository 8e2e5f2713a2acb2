"""What a rank is doing now."""

import time
from collections.abc import Iterator

import pytest

from trainer.supervise.account import Sections


def test_seconds_of_all_sections_add_up_to_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def loader() -> Iterator[None]:
        for _ in range(3):
            wait(1)
            yield

    sections = Sections()
    wait(7)
    for _ in sections.steps_of(loader()):
        wait(10)
        with sections.inside("checkpoint"):
            wait(100)
    with pytest.raises(KeyError), sections.inside("restore"):
        wait(1000)
        raise KeyError
    sections.stepped(7)
    assert (sections.now.section, sections.now.step, sections.steps) == ("step", 7, 1)
    assert sections.take() == {"set-up": 7, "data": 3, "step": 30, "checkpoint": 300, "restore": 1000}
    wait(5)
    sections.alive()
    assert sections.now.lasted_s == 0, "a sign of life begins the limit anew"
