"""The rules of restarts, each by its own: a rule that is taken out fails here; and preemptions over a training."""

from __future__ import annotations

import pytest

from rehearsal.jobs.market import spread
from rehearsal.jobs.restarts import RestartBudget


@pytest.mark.parametrize("code", [1, 2, 70, 75, 137, 143])
def test_most_codes_are_permanent(code: int) -> None:
    assert RestartBudget().after_exit(code) is None


@pytest.mark.parametrize("code", [6, 134, 11, 139])
def test_four_codes_restart_the_job_three_times(code: int) -> None:
    budget = RestartBudget()
    assert [budget.after_exit(code) for _ in range(4)] == ["job", "job", "job", None]


def test_a_lost_machine_restarts_its_worker_five_times_then_the_job_three_times() -> None:
    budget = RestartBudget()
    spent = [budget.after_loss(0) for _ in range(24)]
    assert spent == [*(["worker"] * 5 + ["job"]) * 3, *["worker"] * 5, None]


def test_each_worker_has_restarts_of_its_own() -> None:
    budget = RestartBudget()
    assert [budget.after_loss(node) for node in (0, 0, 0, 0, 0, 1)] == ["worker"] * 6


def test_what_is_disabled_is_never_restarted() -> None:
    budget = RestartBudget(may_restart=False)
    assert (budget.after_exit(134), budget.after_loss(0)) == (None, None)


def test_spread_is_later_each_time_and_of_both_kinds() -> None:
    for seed in range(20):
        found = spread(4, seed=seed, nodes=3)
        moments = [one.at_fraction or 0 for one in found]
        assert moments == sorted(moments)
        assert 0.1 < moments[0] < moments[-1] < 0.9
        assert {one.kind for one in found[:2]} == {"sigterm", "sigkill"}
        assert found[0].node == 0
        assert all(0 <= one.node < 3 for one in found)
