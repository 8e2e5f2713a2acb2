"""What a rank is doing now."""

import time

import pytest

from trainer.supervise.account import Sections


def test_seconds_of_all_sections_add_up_to_the_life() -> None:
    begun = time.monotonic()
    sections = Sections()
    for _ in sections.steps_of(iter(range(3))):
        time.sleep(0.002)
        with sections.inside("checkpoint"):
            time.sleep(0.002)
            assert sections.now.section == "checkpoint"
        assert sections.now.section == "step"
    spent = sections.take()
    assert set(spent) == {"set-up", "data", "step", "checkpoint"}
    assert spent["step"] >= 0.006
    assert spent["checkpoint"] >= 0.006
    assert sum(spent.values()) == pytest.approx(time.monotonic() - begun, abs=0.05)
    sections.enter("evaluation")
    assert set(sections.take()) == {"step", "evaluation"}


def test_an_error_leaves_a_section() -> None:
    sections = Sections()
    with pytest.raises(KeyError), sections.inside("restore"):
        raise KeyError
    assert sections.now.section == "set-up"


def test_a_sign_of_life_begins_the_limit_anew() -> None:
    sections = Sections()
    sections.enter("evaluation")
    before = sections.now.since
    assert list(sections.each_alive(iter("ab"))) == ["a", "b"]
    assert sections.now.since > before
    assert sections.now.section == "evaluation"


def test_waiting_is_data_until_the_loader_gives() -> None:
    sections = Sections()
    seen = []

    def loader():  # type: ignore[no-untyped-def]
        seen.append(sections.now.section)
        yield 1
        seen.append(sections.now.section)

    for _ in sections.steps_of(loader()):
        seen.append(sections.now.section)
    assert seen == ["data", "step", "data"]
    sections.stepped(7)
    assert (sections.now.step, sections.steps) == (7, 1)
