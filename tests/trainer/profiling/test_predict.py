"""Predictions from parts, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.artifacts import Flags, Settings
from tests.trainer.profiling.simulator import a_space
from trainer.profiling.measure import ComputeTime, LoaderRate
from trainer.profiling.predict import MemoryLine, Predictor

FAST = Flags(channels_last=True)


def times(slot_s: float, update_s: float = 0.0, **others: Any) -> ComputeTime:
    return ComputeTime(slot_s, slot_s + update_s, **others)


def settings(slot_size: int, num_workers: int = 0, flags: Flags | None = None) -> Settings:
    return a_space().settings(slot_size, num_workers, prefetch_factor=2, threads=4, flags=flags or Flags())


@pytest.fixture
def predictor() -> Predictor:
    """Steps: 10 ms a slot and 1 ms a sample; loading: 3 ms a sample, 1 ms with three processes' worth."""
    made = Predictor(a_space())
    made.add_compute(8, 4, Flags(), times(0.018))
    made.add_compute(64, 4, Flags(), times(0.074))
    made.add_loader(0, LoaderRate((1 / 0.003,)))
    made.add_loader(4, LoaderRate((1 / 0.001,)))
    return made


def test_without_processes_the_parts_add_up(predictor: Predictor) -> None:
    assert predictor.rate(settings(64)) == pytest.approx(64 / (0.074 + 64 * 0.003))


def test_with_processes_the_shorter_part_hides_as_far_as_was_fitted(predictor: Predictor) -> None:
    together = settings(64, 4)
    compute_s, loader_s = 0.074 / 64, 0.001
    predictor.fit(together, 1 / (compute_s + 0.25 * loader_s))
    assert predictor.overlap == pytest.approx(0.75)
    assert predictor.contention == pytest.approx(0.0, abs=1e-9)
    assert predictor.rate(together) == pytest.approx(1 / (compute_s + 0.25 * loader_s))
    # The same share at another slot size, where computing takes longer.
    assert predictor.rate(settings(8, 4)) == pytest.approx(1 / (0.018 / 8 + 0.25 * loader_s))


def test_what_no_overlap_explains_is_laid_to_the_processes(predictor: Predictor) -> None:
    together, longest, both = settings(64, 4), 0.074 / 64, 0.074 / 64 + 0.001
    predictor.fit(together, 1 / (1.2 * both))
    assert (predictor.overlap, predictor.contention) == (0.0, pytest.approx(0.05))
    assert predictor.rate(together) == pytest.approx(1 / (1.2 * both))
    predictor.fit(together, 1 / (0.9 * longest))
    assert predictor.overlap == 1.0
    assert predictor.rate(together) == pytest.approx(1 / (0.9 * longest))


def test_no_overlap_beats_the_cores() -> None:
    made = Predictor(a_space())
    # Each alone keeps three of four cores busy.
    made.add_compute(64, 4, Flags(), times(0.064, cpu_s_per_sample=0.003))
    made.add_loader(4, LoaderRate((1000.0,), cpu_s_per_sample=0.003))
    assert made.rate(settings(64, 4), overlap=1.0) == pytest.approx(4 / 0.006)


def test_the_update_is_paid_once_a_step(predictor: Predictor) -> None:
    predictor.add_compute(32, 4, Flags(), times(0.032, 0.1))
    # 256 samples a rank: eight slots, one update.
    assert predictor.compute_s(32, 4, Flags()) == pytest.approx((8 * 0.032 + 0.1) / 256)


def test_slots_between_lie_on_the_line_and_those_outside_cost_no_less_a_sample(predictor: Predictor) -> None:
    assert predictor.compute_s(32, 4, Flags()) == pytest.approx(0.042 / 32)
    assert predictor.compute_s(128, 4, Flags()) == pytest.approx(0.074 / 64)


def test_other_flags_grow_as_those_that_were_measured_at_more_sizes(predictor: Predictor) -> None:
    predictor.add_compute(64, 4, FAST, times(0.037))
    assert predictor.compute_s(8, 4, FAST) == pytest.approx(0.009 / 8)
    # A cliff between two sizes of its own says nothing about smaller ones.
    predictor.add_compute(128, 4, FAST, times(0.5))
    assert predictor.compute_s(8, 4, FAST) == pytest.approx(0.009 / 8)


def test_what_was_not_measured_is_not_predicted(predictor: Predictor) -> None:
    assert predictor.rate(settings(64, 2)) is None
    assert predictor.rate(settings(64, 4, FAST)) is None
    predictor.add_loader(2, LoaderRate((0.0,)))
    assert predictor.rate(settings(64, 2)) is None


def test_slots_that_are_not_full_are_paid_for_in_full() -> None:
    space = a_space(profile={"slot_sizes": [192, 256]})
    made = Predictor(space)
    made.add_compute(192, 4, Flags(), times(0.192))
    made.add_compute(256, 4, Flags(), times(0.256))
    made.add_loader(0, LoaderRate((1e9,)))
    # 512 in slots of 192: one rank has two of them, 384 samples' worth of time for its 256.
    assert space.slots_per_rank(192) == 2
    rate = made.rate(space.settings(192, 0, prefetch_factor=2, threads=4, flags=Flags()))
    assert rate == pytest.approx(256 / 0.384, rel=1e-3)


def test_memory_is_a_line_through_the_outermost_sizes() -> None:
    made = Predictor(a_space())
    made.add_compute(8, 4, Flags(), times(0.01, memory_bytes=1080))
    assert made.memory_line(Flags()) is None
    made.add_compute(64, 4, Flags(), times(0.01, memory_bytes=1640))
    made.add_compute(64, 4, FAST, times(0.01, memory_bytes=1320))
    assert made.memory_line(Flags()) == MemoryLine(1000.0, 10.0)
    # Parameters and optimizer are the same: one size is enough.
    assert made.memory_line(FAST) == MemoryLine(1000.0, 5.0)
    assert made.memory_line(Flags(precision="bf16")) is None


def test_the_largest_slot_is_where_the_line_meets_the_limit() -> None:
    assert MemoryLine(1000.0, 10.0).largest(1999) == 99
    assert MemoryLine(1000.0, 10.0).largest(500) == 0
    assert MemoryLine(1000.0, 0.0).largest(500) is None
