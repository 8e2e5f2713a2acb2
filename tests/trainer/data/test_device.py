"""Copies to the GPU beside the computation, and the time that steps wait for data."""

import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from trainer.data.device import DataClock, DataTime, map_tensors, to_device

CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["one", "other"])


@dataclass(frozen=True)
class Nested:
    tensor: torch.Tensor
    others: dict[str, Any]
    name: str = "n"


def items(number: int) -> Iterator[Nested]:
    for value in range(number):
        base = torch.full((4096,), float(value))
        yield Nested(base, {"list": [base + 1, (base + 2, "text")], "pair": Pair(base + 3, 5), "none": None})


@pytest.mark.gpu
def test_copies_arrive_whole_and_in_order_beside_a_busy_gpu() -> None:
    device = torch.device("cuda")
    load = torch.randn(2048, 2048, device=device)
    pinned = (map_tensors(item, lambda tensor: tensor.pin_memory()) for item in items(50))
    kept = []
    for value, item in enumerate(to_device(pinned, device, DataClock(device))):
        assert item.tensor.device.type == "cuda"
        for _ in range(5):
            load = (load @ load).tanh()
        # Read late: memory that were given away too early would hold a later item.
        kept.append((value, item.tensor.sum() / 4096, item.others["pair"].one.sum() / 4096))
    for value, one, other in kept:
        assert (float(one), float(other)) == (value, value + 3)


def test_time_in_the_loader_is_told_from_steps_and_from_what_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def slots() -> Iterator[int]:
        for number in range(3):
            wait(2)
            yield number

    clock = DataClock(CPU)
    for _ in clock.slots(slots()):
        wait(6)
        clock.step_done()
        wait(50)
        clock.restart()
    found = clock.take()
    assert (found.loader_s, found.wall_s, found.copy_s) == (6, 24, None)
    assert found.describe() == "data time 25.0 % (host to device not measured)"
    assert clock.take().loader_s == 0
    assert DataTime(2.0, 0.5, 0.1).describe() == "data time 25.0 % (host to device 5.0 %)"
