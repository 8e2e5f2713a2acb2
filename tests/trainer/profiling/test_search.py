"""The search on simulated machines that fail, and the values that it may try."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.trainer.profiling.simulator import Failing, Machine, Simulator, a_space
from trainer.profiling.search import ROUNDS, Failed, Result, Space, make_space, search

QUIET = Machine(noise=0.0, drift=0.0, hiccups=0.0)


def fails(outcome: Any, where: Callable[[str, int, int], bool]) -> Failing:
    return lambda name, slot_size, workers: Failed(outcome, "planted") if where(name, slot_size, workers) else None


def run(
    failing: Failing = lambda name, slot_size, workers: None,
    *,
    space: Space | None = None,
    machine: Machine = QUIET,
    budget_s: float = 600,
    **options: Any,
) -> tuple[Result, Simulator]:
    """Search, which must end within the budget but for the measurement under way."""
    simulator = Simulator(space or a_space(), machine, failing=failing, budget_s=budget_s)
    result = search(simulator.space, simulator, budget_s=budget_s, **options)
    assert simulator.now() <= budget_s + 5
    return result, simulator


def efficiency(result: Result, simulator: Simulator) -> float:
    return simulator.true_rate(result.choice) / simulator.best()[0]


# --- failures --------------------------------------------------------------------------------------------------------


def test_steps_that_fail_at_one_size_exclude_that_size_alone() -> None:
    result, simulator = run(fails("failed", lambda name, size, workers: name == "compute" and size == 64))
    assert efficiency(result, simulator) > 0.96 and result.choice.slot_size > 64
    assert [point.outcome for point in result.compute if point.slot_size == 64] == ["failed"]


def test_where_all_steps_fail_training_has_its_defaults_and_the_reason() -> None:
    """As of a compilation without a compiler."""
    result, simulator = run(fails("failed", lambda name, size, workers: name != "load"))
    assert not result.choice.measured and result.choice.settings() == simulator.space.default
    (warning,) = result.warnings
    assert "failed: planted" in warning and "profile: off" in warning


def test_a_hanging_loader_leaves_what_works_without_workers() -> None:
    result, simulator = run(fails("timeout", lambda name, size, workers: workers > 0))
    assert result.choice.measured and result.choice.num_workers == 0
    # One hang says enough.
    assert simulator.calls.count("load 1") == 1 and "load 2" not in simulator.calls
    on_gpu = a_space(on_gpu=True, profile={"num_workers": "auto"})
    assert on_gpu.default.num_workers == 3
    result, _ = run(fails("timeout", lambda name, size, workers: workers > 0), space=on_gpu)
    assert result.choice.measured and result.choice.num_workers == 0, "not the default, which hangs"


def test_a_hang_that_takes_the_budget_leaves_the_defaults_and_the_reason() -> None:
    result, _ = run(fails("timeout", lambda name, size, workers: name == "load"), budget_s=60)
    assert not result.choice.measured and "load" in result.warnings[0] and "timeout" in result.choice.reason


@pytest.mark.parametrize("name", ["compute", "run"])
def test_out_of_memory_excludes_that_size_and_larger_ones(name: str) -> None:
    result, simulator = run(fails("out of memory", lambda at, size, workers: at == name and size >= 64))
    assert 8 < result.choice.slot_size < 64 and result.choice.measured
    if name == "compute":
        assert not any(f"{size}/" in call for size in (64, 128, 256) for call in simulator.calls)
        assert {point.slot_size for point in result.compute} == {8, 16, 32, 64}


def test_memory_that_no_size_fits_into_is_an_error() -> None:
    with pytest.raises(ConfigError, match="out of memory"):
        run(fails("out of memory", lambda name, size, workers: name != "load"))


def test_a_default_that_crashes_in_a_later_turn_leaves_the_windows_of_earlier_turns() -> None:
    space, turns = a_space(), itertools.count()
    default = (space.default.slot_size, space.default.num_workers)

    def crash(name: str, size: int, workers: int) -> Failed | None:
        is_later = (name, size, workers) == ("run", *default) and next(turns) >= ROUNDS
        return Failed("crashed", "planted") if is_later else None

    whole, _ = run(space=space)
    result, simulator = run(crash, space=space)
    first, second = [call for call in simulator.calls if call.startswith("run")][:2]
    windows = {f"{point.slot_size}/{point.num_workers}": point.windows for point in result.points}
    assert all(windows[each] >= ROUNDS * (1 + (each in second)) for each in first.split()[2:])
    assert result.choice.settings() == whole.choice.settings() and result.choice.measured


# --- budget and auto -------------------------------------------------------------------------------------------------


def test_a_short_budget_is_used_and_what_beat_the_default_is_taken() -> None:
    result, simulator = run(budget_s=30)
    assert simulator.now() > 20
    assert result.choice.measured and "profile.budget_s ended" in result.warnings[-1]
    assert simulator.true_rate(result.choice) >= simulator.true_rate(simulator.space.default)
    result, _ = run(budget_s=8)
    assert not result.choice.measured and "profile.budget_s ended" in result.choice.reason


def test_more_budget_never_gives_up_what_had_beaten_the_default() -> None:
    """Also where the budget ends between two turns, and the fastest was not measured beside the default."""
    machine = Machine(noise=0.0, drift=0.0, hiccups=0.0, loader_ratio=2.0)
    chosen = []
    for budget_s in range(10, 90, 2):
        result, simulator = run(machine=machine, budget_s=budget_s)
        chosen.append(result.choice.settings() != simulator.space.default)
    assert True in chosen and all(chosen[chosen.index(True) :])


@pytest.mark.parametrize(("samples", "calls"), [(1_000, 7), (10_000_000, None)])
def test_auto_ends_where_the_training_takes_less_time_than_measuring(samples: int, calls: int | None) -> None:
    result, simulator = run(method="auto", training_samples=samples)
    _, whole = run(method="sweep", training_samples=samples)
    if calls is None:
        assert simulator.calls == whole.calls
        return
    assert len(simulator.calls) <= calls and len(simulator.calls) < len(whole.calls)
    assert "the whole training takes" in result.choice.reason and not result.warnings


# --- the choice ------------------------------------------------------------------------------------------------------


def test_the_choice_has_its_rate_its_cost_and_its_reason() -> None:
    result, simulator = run(price_usd_per_h=3.6)
    chosen = next(point for point in result.points if point.settings() == result.choice.settings())
    assert chosen.samples_per_s == pytest.approx(simulator.true_rate(chosen))
    assert chosen.usd_per_million_samples == pytest.approx(1e6 * 0.001 / (2 * simulator.true_rate(chosen)))
    gain = simulator.true_rate(chosen) / simulator.true_rate(simulator.space.default)
    assert gain > 1.1 and f"{gain:.2f} times the default" in result.choice.reason
    rates = [point.samples_per_s for point in result.points]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0)) and len(rates) >= 2


def test_what_is_not_faster_than_the_default_is_not_chosen() -> None:
    """Loading takes nothing, and the largest slot is the fastest: the default."""
    machine = Machine(loader_ratio=0.001, noise=0.0, drift=0.0, hiccups=0.0, slot_overhead_s=0.02)
    result, simulator = run(machine=machine)
    assert result.choice.settings() == simulator.space.default and result.choice.measured
    assert "the default, which none beats by more than 3%" in result.choice.reason


# --- the space -------------------------------------------------------------------------------------------------------


def space_of(ranks: int = 2, cores: int = 4, **options: Any) -> Space:
    sections = options.pop("sections", {})
    options = {"on_gpu": False, **options}
    return make_space(
        RunConfig.model_validate({"train": {"global_batch_size": 512}, **sections}),
        ranks=ranks,
        cores_per_rank=cores,
        **options,
    )


def test_slot_sizes_are_an_even_share_and_its_halves_and_workers_double() -> None:
    space = space_of()
    assert (space.slot_sizes, space.num_workers) == ((8, 16, 32, 64, 128, 256), (0, 1, 2, 4))
    assert (space.default.slot_size, space.default.num_workers) == (256, 0)
    # On a GPU the rank itself takes one of its cores.
    space = space_of(on_gpu=True, cores=12)
    assert space.num_workers == (0, 1, 2, 4, 8, 11) and space.default.num_workers == 11
    small = space_of(sections={"train": {"global_batch_size": 16}})
    assert small.slot_sizes == (1, 2, 4, 8)


@pytest.mark.parametrize(("sync", "smallest"), [(False, 16), (True, 8)])
def test_batch_norm_has_a_floor(sync: bool, smallest: int) -> None:
    sections = {"parallel": {"sync_batch_norm": sync}}
    assert space_of(sections=sections, has_batch_norm=True).slot_sizes[0] == smallest
    tiny = space_of(sections={"train": {"global_batch_size": 8}}, has_batch_norm=True)
    assert tiny.slot_sizes == (4,), "an even share, which is smaller still"
    listed = space_of(sections={"profile": {"slot_sizes": [2, 64]}}, has_batch_norm=True)
    assert listed.slot_sizes == (2, 64) and "BatchNorm" in listed.warnings[0]


def test_lists_and_pinned_values_hold_and_contradictions_are_refused() -> None:
    space = space_of(sections={"profile": {"slot_sizes": [64, 512], "num_workers": [3, 1]}})
    assert (space.slot_sizes, space.num_workers) == ((64,), (1, 3)) and "[512]: not tried" in space.warnings[0]
    assert space_of(sections={"parallel": {"slot_size": 100}}).slot_sizes == (100,)
    for sections, words in (
        ({"profile": {"slot_sizes": [512]}}, "profile.slot_sizes"),
        ({"profile": {"num_workers": [1, 2]}, "data": {"num_workers": 3}}, "data.num_workers is 3"),
        ({"train": {"global_batch_size": 1}}, "for 2 ranks"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            space_of(sections=sections)
        assert caught.value.todo
