"""What is measured, and what is taken."""

from typing import Any

import pytest

from contracts.artifacts import ProfilePoint
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.profiling.sweep import candidate_num_workers, candidate_slot_sizes, choose


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"train": {"global_batch_size": 64}, **sections})


def point(slot_size: int, num_workers: int, rate: float) -> ProfilePoint:
    return ProfilePoint(
        slot_size=slot_size,
        num_workers=num_workers,
        samples_per_s=rate,
        samples_per_s_min=rate,
        samples_per_s_max=rate,
        data_time_fraction=0.1,
    )


def test_the_default_is_an_even_share_its_half_and_its_quarter() -> None:
    assert candidate_slot_sizes(config(), ranks=2) == [8, 16, 32]
    assert candidate_slot_sizes(config(train={"global_batch_size": 3}), ranks=2) == [1]
    assert candidate_num_workers(config(), cores_per_rank=1) == [0, 1]
    assert candidate_num_workers(config(), cores_per_rank=8) == [0, 1, 2, 4, 8]


def test_pinned_values_are_the_only_ones() -> None:
    pinned = config(parallel={"slot_size": 5}, data={"num_workers": 3})
    assert candidate_slot_sizes(pinned, ranks=2) == [5]
    assert candidate_num_workers(pinned, cores_per_rank=1) == [3]


def test_given_candidates_are_measured_where_every_rank_gets_a_slot() -> None:
    given = config(profile={"slot_sizes": [32, 8, 64], "num_workers": [2, 0, 2]})
    assert candidate_slot_sizes(given, ranks=2) == [8, 32]
    assert candidate_num_workers(given, cores_per_rank=1) == [0, 2]
    with pytest.raises(ConfigError, match="none leaves each of 2 ranks a slot"):
        candidate_slot_sizes(config(profile={"slot_sizes": [64]}), ranks=2)


def test_the_fastest_is_taken_when_it_is_clear() -> None:
    choice = choose([point(8, 0, 100), point(32, 2, 200), point(16, 1, 150)])
    assert (choice.slot_size, choice.num_workers) == (32, 2)


def test_the_cheapest_of_equals_is_taken() -> None:
    choice = choose([point(8, 0, 90), point(32, 2, 100), point(32, 0, 98), point(16, 0, 97.5)])
    assert (choice.slot_size, choice.num_workers) == (16, 0)
    assert "the fastest of 4 points has 100" in choice.reason
