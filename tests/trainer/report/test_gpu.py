"""The gauges of a machine, and of its GPU: silent on a CPU, told once where NVML is not there."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer.report import machine
from trainer.report.gpu import GpuGauges
from trainer.report.machine import MachineGauges


def test_a_processor_has_no_gauges() -> None:
    said: list[str] = []
    assert GpuGauges(torch.device("cpu"), said.append).values() == {}
    assert said == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with NVIDIA's driver")
def test_without_the_library_that_is_said_once() -> None:
    said: list[str] = []
    gauges = GpuGauges(torch.device("cuda"), said.append)
    assert gauges.values() == gauges.values() == {}
    assert len(said) == 1 and "no utilisation, memory and temperature of the GPU" in said[0]


@pytest.mark.gpu
def test_a_gpu_says_how_busy_full_and_warm_it_is() -> None:
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    values = GpuGauges(torch.device("cuda", 0), print).values()
    assert 0 <= values["gpu/utilization_percent"] <= 100
    assert values["gpu/memory_used_bytes"] >= held.nbytes
    assert 5 < values["gpu/temperature_celsius"] < 120


NET = """Inter-|   Receive                          |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9999999 9 0 0 0 0 0 0 9999999 9 0 0 0 0 0 0
  eth0:{eth0} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0
  ens5: 1048576 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts this way")
def test_a_machines_gauges_tell_of_the_time_between_two_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauges, end = MachineGauges(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    found = gauges.values()
    assert 20 / (os.cpu_count() or 1) < found["machine/cpu_percent"] <= 100
    assert all(found[f"machine/{way}_mib_per_s"] >= 0 for way in ("received", "sent"))

    counters, now = tmp_path / "dev", [100.0]
    monkeypatch.setattr(machine, "_NETWORK", counters)
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    counters.write_text(NET.format(eth0=0, sent=0))
    gauges = MachineGauges()
    now[0] += 4
    counters.write_text(NET.format(eth0=8 << 20, sent=2 << 20))
    found = gauges.values()
    assert (found["machine/received_mib_per_s"], found["machine/sent_mib_per_s"]) == (2.0, 0.5)
    # The interface came anew: its count begins at 0.
    now[0] += 4
    counters.write_text(NET.format(eth0=0, sent=0))
    assert gauges.values()["machine/received_mib_per_s"] == 0.0
    counters.unlink()
    assert not any("mib" in name for name in gauges.values())
