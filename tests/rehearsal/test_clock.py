"""The clock: it runs at its rate, is moved on at once, and wakes who waits."""

import threading

import pytest

from rehearsal.clock import Clock


def test_it_stands_still_at_rate_0_and_moves_when_told() -> None:
    clock = Clock(start=1000.0, rate=0)
    assert clock.now() == 1000.0
    clock.advance(60)
    assert clock.now() == 1060.0
    with pytest.raises(ValueError, match="would start twice"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="at least 0"):
        clock.rate = -1.0


def test_whoever_sleeps_is_woken_by_the_move_or_told_to_stop() -> None:
    clock, stop, woken = Clock(start=0.0, rate=0), threading.Event(), []
    thread = threading.Thread(target=lambda: woken.append(clock.sleep_until(3600, stop)))
    thread.start()
    clock.advance(3600)
    thread.join(60)
    assert woken == [True]
    stop.set()
    assert clock.sleep_until(9999, stop) is False
