"""Who decides how the global batch is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import ProfileChoice, ProfileReport
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import model_fingerprint
from trainer.cursor import slot_requests
from trainer.cut import choose_cut, has_single_sample_slot
from trainer.order import FullOrder


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"train": {"global_batch_size": 64}, **sections})


def profile(of: RunConfig, slot_size: int = 16, num_workers: int = 3) -> ProfileReport:
    return ProfileReport(
        fingerprint="f",
        model_fingerprint=model_fingerprint(of),
        shards_fingerprint="s",
        hardware={},
        torch_version="2",
        ranks=2,
        threads_per_rank=1,
        global_batch_size=64,
        points=[],
        choice=ProfileChoice(slot_size=slot_size, num_workers=num_workers, reason="r"),
    )


def test_without_a_profile_each_rank_takes_an_even_share() -> None:
    cut = choose_cut(config(), ranks=2, profile=None, recorded=None)
    assert (cut.slot_size, cut.num_workers) == (32, 0)
    assert cut.slots_per_rank(64, 2) == 1


def test_the_profile_wins_over_the_default() -> None:
    cut = choose_cut(config(), ranks=2, profile=profile(config()), recorded=None)
    assert (cut.slot_size, cut.num_workers) == (16, 3)
    assert "slot_size 16: chosen by the profile; num_workers 3: chosen by the profile" in cut.reason
    assert cut.slots_per_rank(64, 2) == 2


def test_an_explicit_value_wins_over_the_profile() -> None:
    explicit = config(parallel={"slot_size": 8}, data={"num_workers": 0})
    cut = choose_cut(explicit, ranks=2, profile=profile(explicit), recorded=None)
    assert (cut.slot_size, cut.num_workers) == (8, 0)
    assert "set by parallel.slot_size" in cut.reason
    assert "set by data.num_workers" in cut.reason


def test_the_recorded_slot_size_wins_over_all() -> None:
    cut = choose_cut(config(), ranks=2, profile=profile(config()), recorded=4)
    assert (cut.slot_size, cut.num_workers) == (4, 3)
    assert "recorded in the checkpoint" in cut.reason


def test_a_report_of_another_model_is_refused() -> None:
    other = config(model={"architecture": "vit"})
    with pytest.raises(DataError, match="measured another model"):
        choose_cut(config(), ranks=2, profile=profile(other), recorded=None)


@pytest.mark.parametrize(("slot_size", "ranks"), [(64, 2), (32, 3), (22, 4)])
def test_more_ranks_than_slots_is_refused(slot_size: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match="slots"):
        choose_cut(config(parallel={"slot_size": slot_size}), ranks=ranks, profile=None, recorded=None)


def test_more_ranks_than_samples_in_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_cut(config(train={"global_batch_size": 2}), ranks=4, profile=None, recorded=None)
    assert "train.global_batch_size to 4" in caught.value.todo


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 40))
def test_slots_of_one_sample_are_foreseen(num_samples: int, batch: int, slot_size: int) -> None:
    order = FullOrder(num_samples, seed=0)
    requests = slot_requests(0, order=order, epochs=1, global_batch_size=batch, slot_size=slot_size, rank=0, ranks=1)
    seen = any(len(request.samples) == 1 for request in requests)
    assert has_single_sample_slot(num_samples, global_batch_size=batch, slot_size=slot_size) == seen
