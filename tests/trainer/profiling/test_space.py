"""What may be tried: lists, pins and exclusions of every knob, and the cut of the global batch."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.artifacts import Flags
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch.choices import BatchLayout
from trainer.profiling.measure import Device
from trainer.profiling.space import Space, make_space

CPU = Device("cpu", "a processor", has_bf16=False)
CPU_BF16 = Device("cpu", "a newer processor", has_bf16=True)
T4 = Device("cuda", "Tesla T4", has_bf16=False)
H100 = Device("cuda", "NVIDIA H100 80GB HBM3", has_bf16=True)


def config(batch: int = 64, **sections: Any) -> RunConfig:
    train = {"global_batch_size": batch, **sections.pop("train", {})}
    return RunConfig.model_validate({"train": train, **sections})


def space(device: Device = CPU, ranks: int = 2, cores: int = 2, batch: int = 64, **sections: Any) -> Space:
    return make_space(config(batch, **sections), ranks=ranks, cores_per_rank=cores, device=device)


# --- slots ------------------------------------------------------------------------------------------------------------


def test_by_itself_it_tries_an_even_share_and_what_is_left_when_it_is_cut_in_2_4_8() -> None:
    assert space().slot_sizes == (2, 4, 8, 16, 32)
    assert space(batch=1000).slot_sizes == (8, 16, 32, 63, 125, 250, 500)
    # Of 65 samples one rank gets 33; the other one, 32.
    assert max(space(batch=65).slot_sizes) == 33
    assert space(batch=3).slot_sizes == (1, 2)
    # Two slots of 2 would leave one of three ranks without a sample.
    assert space(batch=4, ranks=3).slot_sizes == (1,)
    assert space().finds_slot_sizes


def with_batch_norm(batch: int = 64, ranks: int = 2, **sections: Any) -> Space:
    device = replace(CPU, has_batch_norm=True)
    return make_space(config(batch, **sections), ranks=ranks, cores_per_rank=2, device=device)


def test_for_batch_norm_no_slot_below_the_floor_is_tried() -> None:
    assert with_batch_norm().slot_sizes == (16, 32)
    assert with_batch_norm(batch=1000).slot_sizes == (16, 32, 63, 125, 250, 500)
    assert not with_batch_norm().ignored
    # A share that is smaller still is all there is.
    assert with_batch_norm(batch=20).slot_sizes == (10,)
    assert with_batch_norm(batch=9, ranks=4).slot_sizes == (2,)


def test_with_sync_batch_norm_the_slots_of_all_ranks_count_together() -> None:
    sync = {"parallel": {"sync_batch_norm": True}}
    assert with_batch_norm(batch=256, ranks=4, **sync).slot_sizes == (4, 8, 16, 32, 64)
    assert with_batch_norm(batch=256, ranks=4).slot_sizes == (16, 32, 64)


@pytest.mark.parametrize(
    ("sections", "sizes", "said"),
    [
        ({"parallel": {"slot_size": 4}}, (4,), "parallel.slot_size 4: below 16"),
        ({"profile": {"slot_sizes": [2, 8, 32]}}, (2, 8, 32), "profile.slot_sizes [2, 8]: below 16"),
    ],
)
def test_a_small_slot_that_is_named_is_taken_with_a_warning(
    sections: dict[str, Any], sizes: tuple[int, ...], said: str
) -> None:
    found = with_batch_norm(**sections)
    assert found.slot_sizes == sizes
    (warning,) = found.ignored
    assert warning.startswith(said)
    assert not space(**sections).ignored


def test_the_defaults_are_what_training_has_without_a_profile() -> None:
    made = space(cores=3).default
    assert (made.slot_size, made.slots_per_rank, made.num_workers, made.threads) == (32, 1, 0, 3)
    assert space(T4, cores=3).default.num_workers == 2
    pinned = space(
        parallel={"slot_size": 8},
        data={"num_workers": 5, "prefetch_factor": 3},
        resources={"threads": 1},
        train={"precision": "fp32", "channels_last": True},
    ).default
    assert (pinned.slot_size, pinned.slots_per_rank) == (8, 4)
    assert (pinned.num_workers, pinned.prefetch_factor, pinned.threads) == (5, 3, 1)
    assert pinned.flags == Flags(channels_last=True)
    # Lists say what is tried, and nothing is.
    assert space(profile={"slot_sizes": [4]}).default.slot_size == 32


def test_given_slot_sizes_are_tried_where_every_rank_gets_a_slot() -> None:
    given_ = space(profile={"slot_sizes": [32, 8, 64, 8]})
    assert given_.slot_sizes == (8, 32)
    assert not given_.finds_slot_sizes
    assert given_.ignored == (
        "profile.slot_sizes [64]: not tried, they leave some of 2 ranks without a slot of a global batch of 64",
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"profile": {"slot_sizes": [64, 128]}}, r"profile.slot_sizes \[64, 128\]: none leaves each of 2 ranks a slot"),
        ({"parallel": {"slot_size": 64}}, "parallel.slot_size 64: none leaves each of 2 ranks a slot"),
        ({"batch": 1}, "train.global_batch_size 1 leaves some of 2 ranks without a sample"),
    ],
)
def test_no_slot_for_every_rank_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(**sections)


@settings(deadline=None, max_examples=300)
@given(
    batch=st.integers(1, 5000),
    ranks=st.integers(1, 64),
    listed=st.lists(st.integers(1, 600), min_size=1, max_size=6) | st.just("auto"),
    workers=st.lists(st.integers(0, 16), min_size=1, max_size=4) | st.just("auto"),
    cores=st.integers(1, 96),
    device=st.sampled_from([CPU, CPU_BF16, T4, H100]),
)
def test_every_combination_holds_the_global_batch_and_gives_every_rank_a_slot(
    batch: int, ranks: int, listed: Any, workers: Any, cores: int, device: Device
) -> None:
    try:
        found = space(
            device, ranks=ranks, cores=cores, batch=batch, profile={"slot_sizes": listed, "num_workers": workers}
        )
    except ConfigError:
        # Only where it is true that there is none.
        sizes = [batch // ranks] if listed == "auto" else listed
        assert all(size < 1 or size > batch or -(-batch // size) < ranks for size in sizes)
        return
    combinations = list(found.combinations())
    assert len({each.model_dump_json() for each in combinations}) == len(combinations)
    for each in combinations:
        slots = -(-batch // each.slot_size)
        assert slots >= ranks
        # As training deals slots to ranks: the one with the most has slots_per_rank of them.
        assert each.slots_per_rank == max(len(range(rank, slots, ranks)) for rank in range(ranks))
        assert each.slots_per_rank == BatchLayout(each.slot_size, 0, "").slots_per_rank(batch, ranks)
        assert each.slot_size * each.slots_per_rank * ranks >= batch
        assert 0 < found.fill(each.slot_size) <= 1
        assert listed == "auto" or each.slot_size in listed
        assert each.num_workers in (found.num_workers if workers == "auto" else workers)


@given(batch=st.integers(1, 5000), ranks=st.integers(1, 64), slots=st.integers(1, 50))
def test_an_even_cut_has_no_more_slots_than_asked_for_and_none_is_smaller(batch: int, ranks: int, slots: int) -> None:
    if batch < ranks:
        return
    found = space(ranks=ranks, batch=batch)
    size = found.slot_size_of(slots)
    assert -(-batch // size) >= ranks
    assert found.slots_per_rank(size) <= slots or batch // ranks < -(-batch // ranks)
    # A smaller slot would need more of them.
    assert (
        size == 1
        or found.slots_per_rank(size - 1) * (size - 1) * ranks < batch
        or found.slots_per_rank(size - 1) > (found.slots_per_rank(size) - 1)
    )


def test_slots_that_are_not_full_count_for_less() -> None:
    # 48 samples in one rank's slot, 16 in the other's: a step takes as long as 48.
    assert space().fill(48) == pytest.approx(32 / 48)
    assert space().fill(32) == 1


# --- the other knobs --------------------------------------------------------------------------------------------------


def test_by_itself_it_tries_workers_up_to_the_cores_of_a_rank() -> None:
    assert space(cores=1).num_workers == (0, 1)
    assert space(cores=8).num_workers == (0, 1, 2, 4, 8)
    assert space(cores=12).num_workers == (0, 1, 2, 4, 8, 12)
    assert space(cores=26).num_workers[-2:] == (16, 26)
    assert space().prefetch_factors == (2, 4)


def test_threads_are_halved_on_a_cpu_and_left_alone_with_a_gpu() -> None:
    assert space(cores=12).threads == (1, 3, 6, 12)
    assert space(H100, cores=12).threads == (12,)
    assert space(cores=12).usual_threads == 12


PINS = [
    ("slot_size", {"parallel": {"slot_size": 5}}, "slot_sizes", (5,), [4, 8]),
    ("num_workers", {"data": {"num_workers": 3}}, "num_workers", (3,), [0, 1]),
]


@pytest.mark.parametrize(("knob", "pin", "name", "values", "listed"), PINS)
def test_a_pinned_value_is_the_only_one(
    knob: str, pin: dict[str, Any], name: str, values: tuple[int, ...], listed: list[int]
) -> None:
    assert getattr(space(**pin), name) == values
    assert getattr(space(**pin, profile={name: [*listed, *values]}), name) == values
    assert space(data={"prefetch_factor": 7}).prefetch_factors == (7,)
    assert space(resources={"threads": 3}).threads == (3,)


@pytest.mark.parametrize(("knob", "pin", "name", "values", "listed"), PINS)
def test_a_pinned_value_outside_of_its_list_is_refused(
    knob: str, pin: dict[str, Any], name: str, values: tuple[int, ...], listed: list[int]
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{knob.split('_')[0]}\w* is {values[0]}, which is not in profile.{name}"
    ) as refused:
        space(**pin, profile={name: listed})
    assert "=auto" in refused.value.todo


def test_no_loader_processes_have_one_prefetch_factor() -> None:
    found = space(profile={"num_workers": [0, 1], "slot_sizes": [8]}, resources={"threads": 1})
    assert [(each.num_workers, each.prefetch_factor) for each in found.combinations()] == [
        (0, 4),
        (1, 2),
        (1, 4),
    ]


# --- flags ------------------------------------------------------------------------------------------------------------


def test_flags_that_are_set_are_measured_beside_one_at_a_time() -> None:
    found = space(H100, train={"compile": "off"})
    assert found.flags == (Flags(),)
    assert found.measured_flags == (
        Flags(precision="bf16"),
        Flags(channels_last=True),
        Flags(compile=True),
        Flags(activation_checkpointing="whole"),
    )


def test_flags_that_are_auto_are_combined_those_of_training_first() -> None:
    found = space(H100, train={"precision": "auto", "channels_last": "auto", "compile": "off"})
    assert found.flags == (
        Flags(),
        Flags(channels_last=True),
        Flags(precision="bf16"),
        Flags(precision="bf16", channels_last=True),
    )


@pytest.mark.parametrize(
    ("device", "precisions"),
    [(CPU, {"fp32"}), (CPU_BF16, {"fp32", "bf16"}), (T4, {"fp32", "fp16"}), (H100, {"fp32", "bf16"})],
)
def test_precisions_are_those_that_the_device_computes_in(device: Device, precisions: set[str]) -> None:
    assert {each.precision for each in space(device, train={"precision": "auto"}).flags} == precisions


def test_torch_compile_is_tried_on_a_gpu_and_never_with_activation_checkpointing_nor_a_layout_without_images() -> None:
    assert {each.compile for each in space().flags} == {False}
    flags = space(H100, train={"activation_checkpointing": "auto"}).flags
    assert {(each.compile, each.activation_checkpointing) for each in flags} == {
        (False, "none"), (False, "whole"), (True, "none"),
    }  # fmt: skip
    varying = space(replace(H100, compiles=False))
    assert not any(each.compile for each in (*varying.flags, *varying.measured_flags))
    flat = space(replace(H100, has_layout=False), train={"channels_last": "auto"})
    assert not any(each.channels_last for each in (*flat.flags, *flat.measured_flags))
    assert any(each.channels_last for each in space(H100).measured_flags)
    pinned = space(H100, train={"activation_checkpointing": "whole"})
    assert pinned.flags == (Flags(activation_checkpointing="whole"),)
    assert all(not each.compile or each.activation_checkpointing == "none" for each in pinned.measured_flags)
