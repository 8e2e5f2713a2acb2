"""Which job loses a machine, where two of one name run at once."""

from concurrent.futures import ThreadPoolExecutor

from rehearsal.jobs.market import Market, Preempted, Preemption


def test_two_jobs_never_get_the_same_preemption() -> None:
    early, late = Preemption(0, "sigterm", 0.2), Preemption(0, "sigkill", 0.4)
    market = Market(preemptions=[early, late])
    # As of another job's thread.
    with ThreadPoolExecutor(1) as other:
        assert other.submit(market.due, "small-train", 1, 5, 10).result() == early
        assert market.due("small-train", 1, 5, 10) == late
        # A notice that is dropped is given again.
        assert other.submit(market.due, "small-train", 1, 5, 10).result() == early
        market.record(late, Preempted("job", "small-train", 0, "sigkill", 5, 1, 0.0))
        assert market.due("small-train", 1, 5, 10) is None
    # The other job has ended without it.
    assert market.due("small-train", 1, 5, 10) == early and market.missing == 1
