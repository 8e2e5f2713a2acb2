"""Preemptions that are spread over a training."""

from rehearsal.jobs.market import spread


def test_spread_is_later_each_time_and_of_both_kinds() -> None:
    for seed in range(20):
        found = spread(4, seed=seed, nodes=3)
        moments = [one.at_fraction or 0 for one in found]
        assert moments == sorted(moments)
        assert 0.1 < moments[0] < moments[-1] < 0.9
        assert {one.kind for one in found[:2]} == {"sigterm", "sigkill"}
        assert found[0].node == 0
        assert all(0 <= one.node < 3 for one in found)
