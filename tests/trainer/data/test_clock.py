"""Waiting for data, measured apart from the steps."""

import time
from collections.abc import Iterator

import torch

from trainer.data.clock import DataClock, DataTime


def slow_slots() -> Iterator[int]:
    for number in range(4):
        time.sleep(0.02)
        yield number


def test_time_in_the_loader_is_told_from_the_rest() -> None:
    clock = DataClock(torch.device("cpu"))
    for _ in clock.slots(slow_slots()):
        time.sleep(0.01)
    found = clock.take()
    # Lower bounds only: a busy machine sleeps longer.
    assert found.loader_s >= 0.08
    assert found.wall_s - found.loader_s >= 0.04
    assert found.copy_s is None
    assert "host to device not measured" in found.describe()
    again = clock.take()
    assert again.loader_s == 0 and again.wall_s < found.wall_s


def test_what_is_no_step_is_left_out() -> None:
    clock = DataClock(torch.device("cpu"))
    began = time.perf_counter()
    for _ in clock.slots(iter(range(3))):
        time.sleep(0.05)
        clock.restart()
    assert clock.take().wall_s < time.perf_counter() - began - 0.1


def test_the_computing_of_a_steps_last_slot_is_counted() -> None:
    clock = DataClock(torch.device("cpu"))
    for _ in clock.slots(iter(range(3))):
        time.sleep(0.02)
        clock.step_done()
        time.sleep(0.05)
        clock.restart()
    assert clock.take().wall_s >= 0.06


def test_shares_are_in_percent() -> None:
    assert DataTime(2.0, 0.5, 0.1).describe() == "data time 25.0 % (host to device 5.0 %)"
    assert DataTime(0.0, 0.0, None).share(0.0) == 0
