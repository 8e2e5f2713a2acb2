"""The gauges of a GPU: silent on a CPU, told once where NVML is not there."""

import pytest
import torch

from trainer.report.gauges import GpuGauges


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
