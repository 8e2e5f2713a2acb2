"""What a rank is doing now."""

import time
from collections.abc import Iterator

import pytest

from trainer.supervise.account import Sections


def test_seconds_of_all_sections_add_up_to_the_life() -> None:
    begun = time.monotonic()
    sections, inside_loader = Sections(), []

    def loader() -> Iterator[int]:
        for item in range(3):
            inside_loader.append(sections.now.section)
            yield item

    for _ in sections.steps_of(loader()):
        time.sleep(0.002)
        with sections.inside("checkpoint"):
            time.sleep(0.002)
            assert sections.now.section == "checkpoint"
        assert sections.now.section == "step"
    assert inside_loader == ["data"] * 3
    with pytest.raises(KeyError), sections.inside("restore"):
        raise KeyError
    sections.stepped(7)
    assert (sections.now.section, sections.now.step, sections.steps) == ("step", 7, 1)
    spent = sections.take()
    assert set(spent) == {"set-up", "data", "step", "checkpoint", "restore"}
    assert spent["step"] >= 0.006
    assert spent["checkpoint"] >= 0.006
    assert sum(spent.values()) == pytest.approx(time.monotonic() - begun, abs=0.05)
    sections.enter("evaluation")
    before = sections.now.since
    assert list(sections.each_alive(iter("ab"))) == ["a", "b"]
    assert sections.now.since > before, "a sign of life begins the limit anew"
    assert set(sections.take()) == {"step", "evaluation"}
