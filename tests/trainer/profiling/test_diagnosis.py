"""Indicators over ranks and the six rules: each fires on its cause, with the largest share it could save."""

from typing import Any

import pytest

from contracts.artifacts import ComputePoint, Finding, LoaderPoint, ProfileChoice, TraceSummary
from contracts.config import RunConfig
from tests.conftest import small_config
from trainer.profiling.diagnosis import Counters, diagnose
from trainer.profiling.runner import Device

A100, CPU = (
    Device(kind, name, True, 1000, has_batch_norm=False, compiles=True, has_layout=True)  # type: ignore[arg-type]
    for kind, name in (("cuda", "NVIDIA A100-SXM4-40GB"), ("cpu", "CPU"))
)
TUNED = {"precision": "bf16", "compile": "on", "channels_last": True}
CHOICE = ProfileChoice(slot_size=8, num_workers=0, reason="")
COUNTERS = Counters(step_s=0.1, samples_per_s=1000.0, data_time_fraction=0.05)


def config(**train: Any) -> RunConfig:
    values = {name: value for name, value in small_config(train=train).items() if name != "sharding"}
    return RunConfig.model_validate(values)


def gpu_summary(**values: Any) -> TraceSummary:
    """Summary of a GPU with nothing wrong, but for `values`."""
    healthy: dict[str, Any] = {"rank": 0, "device": "gpu", "steps": 4, "step_s": 0.1, "gpu_busy_fraction": 0.95}
    healthy |= {"kernels_per_step": 300.0, "mean_kernel_us": 120.0, "copy_kernel_fraction": 0.02}
    healthy |= {"exchanges_s": (0.002,) * 4, "exposed_copy_fraction": 0.0, "tensor_core_fraction": 0.8}
    return TraceSummary.model_validate(healthy | {"breakdown_s": {"kernels": 0.095, "loader": 0.005}} | values)


def findings(
    summary: TraceSummary, train: dict[str, Any] = TUNED, slots_per_rank: int = 2, **counters: Any
) -> list[Finding]:
    choice = ProfileChoice(slot_size=8, slots_per_rank=slots_per_rank, num_workers=2, reason="")
    counted = Counters(**({"step_s": 0.1, "samples_per_s": 1000.0, "data_time_fraction": 0.05} | counters))
    _, fired = diagnose(
        config(**train),
        choice,
        A100,
        [counted, counted],
        [summary, summary],
        loader=[LoaderPoint(num_workers=4, slot_size=8, samples_per_s=1200.0)],
        compute=[ComputePoint(slot_size=8, samples_per_s=3000.0)],
    )
    return fired


def only(fired: list[Finding], rule: str) -> Finding:
    assert [finding.rule for finding in fired] == [rule]
    return fired[0]


def test_nothing_fires_on_a_healthy_gpu() -> None:
    assert findings(gpu_summary(), flops_per_sample=100e9) == []


def test_data_time() -> None:
    idle = gpu_summary(gpu_busy_fraction=0.5, breakdown_s={"kernels": 0.05, "loader": 0.04, "other": 0.01})
    finding = only(findings(idle), "R1")
    assert finding.time_share == pytest.approx(0.4)
    assert "loader alone: at most 1200 samples/s per rank, workers: 4" in finding.evidence
    # A host that waits while the GPU computes loses nothing.
    assert findings(gpu_summary(), data_time_fraction=0.6) == []


def test_small_kernels() -> None:
    small = gpu_summary(gpu_busy_fraction=0.6, mean_kernel_us=8.0)
    finding = only(findings(small, {}), "R2")
    assert finding.time_share == pytest.approx(0.4)
    assert "train.compile=on" in finding.change and "parallel.slot_size" in finding.change
    # What is set already, or cannot be larger, is no advice.
    assert only(findings(small, slots_per_rank=1), "R2").change == "use a larger train.global_batch_size"


def test_copies() -> None:
    layout = gpu_summary(copy_kernel_fraction=0.3)
    finding = only(findings(layout, {}), "R4")
    assert finding.time_share == pytest.approx(0.3 * 0.95)
    assert "train.channels_last=true" in finding.change
    assert "channels_last" not in only(findings(layout), "R4").change
    exposed = only(findings(gpu_summary(exposed_copy_fraction=0.1, pageable_copies=2)), "R4")
    assert "pin_memory" in exposed.change


def test_memory() -> None:
    finding = only(findings(gpu_summary(), memory_peak_bytes=95, memory_limit_bytes=100), "R5")
    assert finding.time_share is None
    assert findings(gpu_summary(), memory_peak_bytes=90, memory_limit_bytes=100) == []


def test_exposed_exchange_is_that_of_the_last_rank() -> None:
    assert only(findings(gpu_summary(exchanges_s=(0.04,) * 4)), "R6").time_share == pytest.approx(0.4)
    # Each rank waits for the other in turn, and one step was disturbed: the exchange itself takes 10 %.
    alternating = [gpu_summary(exchanges_s=(0.01, 0.05, 0.01, 0.08)), gpu_summary(exchanges_s=(0.05, 0.01, 0.05, 0.08))]
    indicators, fired = diagnose(config(**TUNED), CHOICE, A100, [COUNTERS, COUNTERS], alternating)
    assert (indicators.communication_fraction, fired) == (pytest.approx(0.1), [])
    # A single rank has no exchange.
    assert diagnose(config(), CHOICE, CPU, [COUNTERS], alternating[:1])[0].communication_fraction is None


def test_low_mfu() -> None:
    fired = findings(gpu_summary(tensor_core_fraction=0.1), {}, flops_per_sample=15.6e9)
    finding = only(fired, "R9")
    # 15.6 TFLOP/s are 10 % of the peak in TF32, and 5 % of that in bf16.
    assert finding.evidence[0].startswith("MFU 10%")
    assert finding.time_share == pytest.approx(0.95)
    for advice in ("train.precision=bf16", "train.channels_last=true", "train.compile=on"):
        assert advice in finding.change


def test_the_largest_saving_comes_first_and_values_are_of_the_slowest_rank() -> None:
    summary = gpu_summary(exchanges_s=(0.02,) * 4, copy_kernel_fraction=0.5)
    assert [finding.rule for finding in findings(summary)] == ["R4", "R6"]
    slow = Counters(step_s=0.2, samples_per_s=500.0, data_time_fraction=0.3, memory_peak_bytes=7)
    indicators, _ = diagnose(config(), CHOICE, CPU, [COUNTERS, slow], [])
    assert (indicators.step_s, indicators.data_time_fraction, indicators.memory_peak_bytes) == (0.2, 0.3, 7)
    assert (indicators.mfu, indicators.gpu_busy_fraction, indicators.communication_fraction) == (None, None, None)
