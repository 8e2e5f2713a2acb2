"""The gauges of a GPU: silent on a CPU, and once said where NVML has none."""

import pytest
import torch

from trainer.report.gauges import GpuGauges


def test_a_processor_has_no_gauges() -> None:
    lines: list[str] = []
    assert GpuGauges(torch.device("cpu"), lines.append).values() == {}
    assert lines == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with NVIDIA's driver")
def test_without_a_gpu_each_gauge_is_named_once() -> None:
    lines: list[str] = []
    gauges = GpuGauges(torch.device("cuda", 0), lines.append)
    assert gauges.values() == gauges.values() == {}
    assert len(lines) == 3 and lines[0].startswith("no gpu/utilization_percent (")


@pytest.mark.gpu
def test_a_gpu_says_how_busy_full_and_warm_it_is() -> None:
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    values = GpuGauges(torch.device("cuda", 0), print).values()
    assert 0 <= values["gpu/utilization_percent"] <= 100
    assert values["gpu/memory_used_bytes"] >= held.nbytes
    assert 5 < values["gpu/temperature_celsius"] < 120
