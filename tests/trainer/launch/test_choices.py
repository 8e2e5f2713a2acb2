"""Who decides how the global batch is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import ProfileChoice, ProfileReport
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import model_fingerprint
from contracts.process import available_cores
from trainer.data.cursor import slot_requests
from trainer.data.order import FullOrder
from trainer.launch.choices import (
    choose_batch_layout,
    choose_threads,
    find_differences,
    slot_sizes,
)


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"train": {"global_batch_size": 64}, **sections})


def profile(of: RunConfig, slot_size: int = 16, num_workers: int = 3, **choice: Any) -> ProfileReport:
    return ProfileReport(
        fingerprint="f",
        model_fingerprint=model_fingerprint(of),
        shards_fingerprint="s",
        hardware={"gpus": "NVIDIA L4"},
        torch_version="2",
        ranks=2,
        threads_per_rank=1,
        global_batch_size=64,
        points=[],
        choice=ProfileChoice(slot_size=slot_size, num_workers=num_workers, reason="r", **choice),
    )


EXPLICIT = {"parallel": {"slot_size": 8}, "data": {"num_workers": 1, "prefetch_factor": 8}}


@pytest.mark.parametrize(
    ("sections", "has_profile", "recorded", "expected", "why"),
    [
        ({}, False, None, (32, 0, 4), "no profile"),
        ({}, True, None, (16, 3, 4), "num_workers 3: chosen by the profile"),
        (EXPLICIT, True, None, (8, 1, 8), "set by parallel.slot_size; num_workers 1: set by data.num_workers"),
        ({}, True, 4, (4, 3, 4), "recorded in the checkpoint"),
    ],
)
def test_who_decides_how_the_batch_is_cut_and_loaded(
    sections: dict[str, Any], has_profile: bool, recorded: int | None, expected: tuple[int, ...], why: str
) -> None:
    """The checkpoint before the configuration before the profile before an even share."""
    of = config(**sections)
    layout = choose_batch_layout(of, ranks=2, profile=profile(of) if has_profile else None, recorded=recorded)
    assert (layout.slot_size, layout.num_workers, layout.prefetch_factor) == expected
    assert why in layout.reason


def test_a_profile_that_measured_nothing_leaves_the_defaults() -> None:
    """Whatever it was written for: ranks may be others."""
    report = profile(config(), slot_size=16, measured=False)
    layout = choose_batch_layout(config(), ranks=4, profile=report, recorded=None, spare_cores=5)
    assert (layout.slot_size, layout.num_workers) == (16, 5)
    why = "default, the profile compared nothing"
    assert f"an even share of the global batch ({why}); num_workers 5: {why}" in layout.reason
    # Nothing was measured that another machine would be different from.
    assert find_differences(report, {"gpus": "none"}, 32) == []


def test_a_profile_of_another_machine_or_global_batch_is_told() -> None:
    gpus, batch = find_differences(profile(config()), {"gpus": "none"}, 32)
    assert "measured with gpus NVIDIA L4, not none" in gpus
    assert "measured with train.global_batch_size 64, not 32" in batch


def test_threads_are_set_or_an_even_share_of_the_cores() -> None:
    assert choose_threads(config(), ranks=2) == (max(1, available_cores() // 2), "")
    assert choose_threads(config(resources={"threads": 1}), ranks=2) == (1, "")
    threads, warning = choose_threads(config(resources={"threads": 1024}), ranks=2)
    assert threads == 1024 and "more than the" in warning


def test_a_report_of_another_model_and_more_ranks_than_samples_are_refused() -> None:
    other = config(model={"architecture": "vit"})
    with pytest.raises(DataError, match="measured another model"):
        choose_batch_layout(config(), ranks=2, profile=profile(other), recorded=None)
    with pytest.raises(ConfigError) as caught:
        choose_batch_layout(config(train={"global_batch_size": 2}), ranks=4, profile=None, recorded=None)
    assert "train.global_batch_size to 4" in caught.value.todo


@pytest.mark.parametrize(("recorded", "ranks", "idle"), [(32, 4, 2), (1, 64, 0)])
def test_a_training_goes_on_with_more_ranks_than_slots(recorded: int, ranks: int, idle: int) -> None:
    """The recorded slot size cannot change, whatever parallel.slot_size says: ranks without a slot idle."""
    cut = choose_batch_layout(config(parallel={"slot_size": 1}), ranks=ranks, profile=None, recorded=recorded)
    assert (cut.slot_size, cut.idle_ranks(64, ranks)) == (recorded, idle)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 40))
def test_sizes_of_slots_are_foreseen(num_samples: int, batch: int, slot_size: int) -> None:
    order = FullOrder(num_samples, seed=0)
    requests = slot_requests(0, order=order, epochs=1, global_batch_size=batch, slot_size=slot_size, rank=0, ranks=1)
    sizes = {len(request.samples) for request in requests}
    assert slot_sizes(num_samples, global_batch_size=batch, slot_size=slot_size) == sorted(sizes, reverse=True)
