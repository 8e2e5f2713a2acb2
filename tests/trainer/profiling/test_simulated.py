"""The search on 70 simulated machines whose best settings are known: input over compute varies 50-fold."""

from __future__ import annotations

from statistics import fmean

import pytest

from tests.trainer.profiling.simulator import RATIOS, SEEDS, Simulator, a_machine
from trainer.profiling.search import search


@pytest.fixture(scope="module")
def searched() -> list[tuple[float, float]]:
    """True rate of the choice over the best there is, and over that of the default."""
    rates = []
    for ratio in RATIOS:
        for seed in SEEDS:
            space, machine = a_machine(ratio, seed)
            simulator = Simulator(space, machine, seed)
            choice = search(space, simulator, budget_s=600).choice
            assert simulator.now() <= 600
            chosen, default = simulator.true_rate(choice), simulator.true_rate(space.default)
            rates.append((chosen / simulator.best()[0], chosen / default if default else float("inf")))
    return rates


def test_the_choice_has_96_percent_of_the_best_on_average(searched: list[tuple[float, float]]) -> None:
    assert fmean(of_best for of_best, _ in searched) >= 0.96
    assert min(of_best for of_best, _ in searched) >= 0.85


def test_the_choice_is_never_slower_than_the_default(searched: list[tuple[float, float]]) -> None:
    assert min(of_default for _, of_default in searched) >= 1


def test_without_noise_the_choice_is_close_to_the_best_everywhere() -> None:
    for ratio in RATIOS:
        space, machine = a_machine(ratio, 0)
        machine.noise = machine.drift = machine.hiccups = 0.0
        simulator = Simulator(space, machine)
        choice = search(space, simulator, budget_s=600).choice
        assert simulator.true_rate(choice) >= 0.94 * simulator.best()[0]
