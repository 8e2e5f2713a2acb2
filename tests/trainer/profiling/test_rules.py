"""Each rule has something that fires it, and something much like it that does not.

Traces of a CPU were recorded (record_traces.py); those of a GPU are synthetic (gpu_trace.py). Where a trace says
nothing of it, the counters are planted.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import (
    ComputePoint,
    Finding,
    Flags,
    Indicators,
    LoaderPoint,
    MemoryModel,
    ProfileChoice,
    ProfilePoint,
    Recommendation,
)
from contracts.artifacts.trace import TraceSummary
from contracts.config import RunConfig
from contracts.config.load import load_config, parse_config
from tests.conftest import small_config
from tests.trainer.profiling.gpu_trace import write_gpu_trace
from trainer.profiling.case import Case
from trainer.profiling.indicators import Counters, make_indicators
from trainer.profiling.rules import diagnose
from trainer.profiling.trace import summarise

FOLDER = Path(__file__).parent / "traces"
CHOICE = ProfileChoice(slot_size=32, slots_per_rank=2, num_workers=2, reason="")


@cache
def recorded(name: str) -> TraceSummary:
    return summarise(FOLDER / f"{name}.json.gz")


def config(**sections: dict[str, Any]) -> RunConfig:
    return parse_config(small_config(**{"data": {"num_workers": "auto"}, **sections}), where="test")


def findings(counters: Counters, summaries: list[TraceSummary], **measured: Any) -> dict[str, Finding]:
    given = {"choice": CHOICE, "config": config(), **measured}
    found = diagnose(Case(make_indicators(counters, summaries), summaries=summaries, **given))
    return {finding.rule: finding for finding in found}


def on_cpu(name: str, **counted: Any) -> dict[str, Finding]:
    """Findings of a recorded trace; its own waiting for data is what would have been counted."""
    summaries = [recorded(name)] if (FOLDER / f"{name}.json.gz").exists() else [recorded(f"{name}-{r}") for r in (0, 1)]
    waiting = max(s.breakdown_s["loader"] / sum(s.breakdown_s.values()) for s in summaries)
    return findings(Counters(data_time_fraction=waiting, **counted), summaries)


def on_gpu(folder: Path, counted: dict[str, Any] | None = None, **what_is_wrong: Any) -> dict[str, Finding]:
    """Findings of a synthetic trace, with 64 samples a step."""
    summary = summarise(write_gpu_trace(folder / "trace.json.gz", **what_is_wrong))
    data_time = summary.breakdown_s["loader"] / sum(summary.breakdown_s.values())
    rate = {"step_s": summary.step_s, "samples_per_s": 64 / summary.step_s, "data_time_fraction": data_time}
    return findings(Counters(**{**rate, **(counted or {})}), [summary])


# --- nothing wrong ----------------------------------------------------------------------------------------------------


def test_steady_steps_on_a_cpu_have_no_finding() -> None:
    assert on_cpu("steady") == {}


def test_a_busy_gpu_has_no_finding(tmp_path: Path) -> None:
    counted = {"flops_per_sample": 100e9, "precision": "fp16", "nvml_utilisation_fraction": 1.0}
    assert on_gpu(tmp_path, counted) == {}


def test_nothing_measured_is_no_finding() -> None:
    assert findings(Counters(), []) == {}


# --- each rule --------------------------------------------------------------------------------------------------------


def test_r1_on_a_cpu() -> None:
    found = on_cpu("starved")
    assert set(found) == {"R1"}
    assert found["R1"].severity == "bad"
    assert found["R1"].evidence[0].startswith("data time 7")
    # Nothing but the trace is there: all that can be said is what waiting costs.
    assert found["R1"].gain == pytest.approx(1 / (1 - 0.73), rel=0.05)
    assert found["R1"].gain_from.startswith("at most")


def test_r1_on_a_gpu(tmp_path: Path) -> None:
    found = on_gpu(tmp_path, loader_us=30000.0)
    assert set(found) == {"R1"}
    assert found["R1"].severity == "warning"
    # The host waits as long for data, but the GPU has enough queued: nothing is lost.
    assert on_gpu(tmp_path, {"data_time_fraction": 0.5}, loader_us=10000.0) == {}


def test_r2(tmp_path: Path) -> None:
    found = on_gpu(tmp_path, {"nvml_utilisation_fraction": 0.99}, kernel_us=3.0, kernels=150)
    assert set(found) == {"R2"}
    assert any("nvidia-smi shows 99%" in line for line in found["R2"].evidence)
    assert found["R2"].gain is not None and found["R2"].gain_from.startswith("at most")
    # As many kernels that are long enough; and a GPU that is busy with small ones.
    assert on_gpu(tmp_path, kernel_us=40.0, kernels=150) == {}
    assert "R2" not in on_gpu(tmp_path, kernel_us=15.0, kernels=150)


def test_r2_by_occupancy(tmp_path: Path) -> None:
    # Kernels as long as the host needs to queue them twice, but hardly anything in them.
    idle: dict[str, Any] = {"kernel_us": 30.0, "launch_us": 60.0}
    assert set(on_gpu(tmp_path, **idle, occupancy=12.0)) == {"R2"}
    assert on_gpu(tmp_path, **idle, occupancy=70.0) == {}


def test_r3(tmp_path: Path) -> None:
    found = on_gpu(tmp_path, kernels=200, kernel_us=15.0, names=30)
    assert set(found) == {"R3"}
    assert found["R3"].gain is None
    # The same time in a few kinds of kernels; fewer kernels; longer ones.
    assert on_gpu(tmp_path, kernels=200, kernel_us=15.0, names=1) == {}
    assert on_gpu(tmp_path, kernels=80, kernel_us=15.0, names=30) == {}
    assert on_gpu(tmp_path, kernels=200, kernel_us=80.0, names=30) == {}


def test_r4_on_a_cpu() -> None:
    found = on_cpu("copying")
    assert set(found) == {"R4"}
    assert any(line.startswith("aten::copy_:") for line in found["R4"].evidence)


def test_r4_on_a_gpu(tmp_path: Path) -> None:
    found = on_gpu(tmp_path, layout_share=0.25)
    assert set(found) == {"R4"}
    # Channels last changes more than the copies: only where the layout is not to be changed is there an "at most".
    assert found["R4"].gain is None
    assert any("nchwToNhwc" in line for line in found["R4"].evidence)
    assert on_gpu(tmp_path, layout_share=0.05) == {}


def test_r5() -> None:
    gib = 1 << 30
    held = Counters(memory_peak_bytes=30 * gib, memory_reserved_bytes=38 * gib, memory_limit_bytes=40 * gib)
    found = findings(held, [])
    assert set(found) == {"R5"}
    assert found["R5"].severity == "warning"
    assert found["R5"].evidence[0] == "38 GiB held by the allocator of 40 GiB that others leave it: 95% (target: 92%)"
    assert found["R5"].gain is None
    roomy = Counters(memory_peak_bytes=30 * gib, memory_reserved_bytes=32 * gib, memory_limit_bytes=40 * gib)
    assert findings(roomy, []) == {}
    retried = Counters(allocation_retries=3, memory_reserved_bytes=32 * gib, memory_limit_bytes=40 * gib)
    assert findings(retried, [])["R5"].severity == "bad"
    # Without a GPU nothing is held back: the peak counts.
    assert set(findings(Counters(memory_peak_bytes=38 * gib, memory_limit_bytes=40 * gib), [])) == {"R5"}
    assert findings(Counters(memory_peak_bytes=38 * gib), []) == {}


def test_r5_says_which_slot_fits() -> None:
    counted = Counters(memory_peak_bytes=980, memory_limit_bytes=1000)
    line = MemoryModel(base_bytes=340, bytes_per_sample=20.0, limit_bytes=1000)
    assert "29 samples fit" in findings(counted, [], memory=[line])["R5"].change
    other = MemoryModel(flags=Flags(precision="bf16"), base_bytes=340, bytes_per_sample=20.0)
    assert "samples fit" not in findings(counted, [], memory=[other])["R5"].change


def test_r6_on_a_cpu() -> None:
    found = on_cpu("exchange")
    assert set(found) == {"R6"}
    assert found["R6"].severity == "warning"
    assert "train.global_batch_size" in found["R6"].change
    # Who waits for a straggler exchanges as little as the straggler does.
    assert "R6" not in on_cpu("straggler")


def test_r6_on_a_gpu(tmp_path: Path) -> None:
    exposed = on_gpu(tmp_path, exchange_us=12000.0, exchange_beside=0.0, ranks=8)
    assert set(exposed) == {"R6"}
    step_us = 361 * 120.0 + 12000.0
    assert exposed["R6"].gain == pytest.approx(1 / (1 - 12000.0 / step_us), rel=0.02)
    assert on_gpu(tmp_path, exchange_us=12000.0, exchange_beside=1.0, ranks=8) == {}


def test_r7(tmp_path: Path) -> None:
    waiting = on_gpu(tmp_path, copy_us=4000.0, copy_beside=False)
    assert set(waiting) == {"R7"}
    assert waiting["R7"].severity == "warning"
    assert waiting["R7"].gain == pytest.approx(1 / (1 - 8000.0 / (361 * 120.0 + 8000.0)), rel=0.02)
    assert on_gpu(tmp_path, copy_us=4000.0, copy_beside=True) == {}
    pageable = on_gpu(tmp_path, pageable=True)
    assert set(pageable) == {"R7"}
    assert (pageable["R7"].severity, pageable["R7"].gain) == ("note", None)


def test_r8(tmp_path: Path) -> None:
    found = on_gpu(tmp_path, sync_every=10, sync_idle_us=300.0)
    assert set(found) == {"R8"}
    assert any("aten::_local_scalar_dense: 36 calls" in line for line in found["R8"].evidence)
    # No more can be won than the GPU is idle.
    assert found["R8"].gain == pytest.approx(1 / (361 * 120.0 / (361 * 120.0 + 36 * 310.0)), rel=0.03)
    # The host waits, but has queued enough again before the GPU could notice.
    assert on_gpu(tmp_path, sync_every=180, sync_idle_us=0.0) == {}
    # What the loader waits for is data time.
    assert set(on_gpu(tmp_path, loader_us=40000.0, loader_sync_us=39000.0)) == {"R1"}


def test_r9(tmp_path: Path) -> None:
    low = {"flops_per_sample": 12e9, "precision": "tf32", "nvml_utilisation_fraction": 1.0}
    found = on_gpu(tmp_path, low, tensor_cores=False)
    assert set(found) == {"R9"}
    assert "0% of kernel time in kernels that use tensor cores, by their names" in found["R9"].evidence
    assert any(line.startswith("nvidia-smi shows 100%") for line in found["R9"].evidence)
    assert found["R9"].gain is None
    assert on_gpu(tmp_path, {**low, "flops_per_sample": 50e9}, tensor_cores=False) == {}
    # A GPU of which no data sheet is known has no utilisation.
    assert on_gpu(tmp_path, low, tensor_cores=False, gpu_name="NVIDIA GeForce RTX 3090") == {}


def test_r9_where_memory_limits(tmp_path: Path) -> None:
    """Tensors of 103 MB in 130 us: read only, they are half of 1,555 GB/s, read and written all of it."""
    low = {"flops_per_sample": 12e9, "precision": "fp16"}
    large: dict[str, Any] = {"image_size": 56, "kernel_us": 130.0}
    found = on_gpu(tmp_path, low, **large)
    assert set(found) == {"R9"}
    assert found["R9"].title == "The GPU is busy moving data"
    assert "of 8" not in found["R9"].change and "tensor cores" not in found["R9"].change
    assert any(line.startswith("aten::cudnn_batch_norm_backward: limited by memory") for line in found["R9"].evidence)
    # Small tensors: the same kernels compute, or wait for something else.
    usual = on_gpu(tmp_path, low)["R9"]
    assert usual.title == "The GPU is busy, but computes little" and "of 8" in usual.change
    # A GPU that computes as it should: nothing is said of memory.
    assert on_gpu(tmp_path, {**low, "flops_per_sample": 100e9}, **large) == {}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_evidence_is_of_the_rank_that_the_indicators_are_of(tmp_path: Path, order: tuple[int, int]) -> None:
    """The others wait for rank 1: their kernels and their reads say nothing of what it loses time with."""
    of_ranks = [
        {"exchange_us": 40000.0, "exchange_beside": 0.0, "kernel_us": 30.0},
        {"tensor_cores": False, "layout_share": 0.25, "sync_every": 10, "sync_idle_us": 300.0},
    ]
    summaries = [
        summarise(write_gpu_trace(tmp_path / f"{rank}.json", rank=rank, ranks=2, **of_ranks[rank])) for rank in order
    ]
    counted = Counters(data_time_fraction=0.0, flops_per_sample=1e9, precision="fp32", samples_per_s=10.0)
    found = findings(counted, summaries)
    assert {"R4", "R8"} <= set(found)
    assert any("nchwToNhwc" in line for line in found["R4"].evidence)
    assert any("aten::_local_scalar_dense: 36 calls" in line for line in found["R8"].evidence)
    busy = make_indicators(counted, summaries).model_copy(update={"gpu_busy_fraction": 0.95})
    r9 = next(f for f in diagnose(Case(busy, CHOICE, config(), summaries=summaries)) if f.rule == "R9")
    assert "0% of kernel time in kernels that use tensor cores, by their names" in r9.evidence
    assert any(line.startswith("volta_sgemm") for line in r9.evidence)


def test_r10() -> None:
    found = on_cpu("straggler")
    assert set(found) == {"R10"}
    assert found["R10"].severity == "bad"
    assert any(": rank 1 " in line for line in found["R10"].evidence)
    assert "R10" not in on_cpu("exchange")
    assert set(findings(Counters(rank_step_s=(1.0, 1.0, 1.0, 1.2)), [])) == {"R10"}
    assert findings(Counters(rank_step_s=(1.0, 1.0, 1.0, 1.05)), []) == {}


def test_r11() -> None:
    found = findings(Counters(checkpoint_stall_fraction=0.05), [])
    assert set(found) == {"R11"}
    assert found["R11"].gain == pytest.approx(1 / 0.95)
    # The finding is of these settings, which a report that is found again may not have.
    assert found["R11"].evidence[1] == "computed at a checkpoint every 300 s"
    often = config(checkpoint={"every_steps": 10})
    found = findings(Counters(checkpoint_stall_fraction=0.05), [], config=often)
    assert found["R11"].evidence[1] == "computed at checkpoint.every_steps=10"
    assert findings(Counters(checkpoint_stall_fraction=0.015), []) == {}


# --- gains ------------------------------------------------------------------------------------------------------------

STARVED = Counters(data_time_fraction=0.6)
POINT = ProfilePoint(slot_size=32, slots_per_rank=2, num_workers=2, samples_per_s=100.0)
ALONE = ComputePoint(slot_size=32, threads=1, samples_per_s=250.0)


def loader(num_workers: int, rate: float) -> LoaderPoint:
    return LoaderPoint(num_workers=num_workers, prefetch_factor=4, slot_size=32, samples_per_s=rate)


def test_a_faster_loader_that_was_not_tried_gains_what_it_was_measured_at() -> None:
    given = {"points": [POINT], "compute": [ALONE], "loader": [loader(2, 105.0), loader(4, 200.0)]}
    found = findings(STARVED, [], **given)["R1"]
    assert found.gain == pytest.approx(2.0)
    assert "data.num_workers=4" in found.change
    # No faster than the steps alone.
    given["loader"] = [loader(2, 105.0), loader(4, 900.0)]
    assert findings(STARVED, [], **given)["R1"].gain == pytest.approx(2.5)


def test_the_gain_is_in_the_title() -> None:
    given = {"points": [POINT], "compute": [ALONE], "loader": [loader(2, 105.0)]}
    assert findings(STARVED, [], **given)["R1"].title == "Steps wait for data (x 2.50 at most)"
    full = Counters(memory_peak_bytes=980, memory_limit_bytes=1000)
    assert findings(full, [])["R5"].title == "Memory is nearly full"


SLOW = Indicators(
    data_time_fraction=0.6,
    copy_kernel_fraction=0.3,
    memory_peak_bytes=980,
    memory_limit_bytes=1000,
    communication_fraction=0.5,
    pageable_copies=1,
    slowest_rank_ratio=2.0,
    checkpoint_stall_fraction=0.2,
)
BUSY = {"gpu_busy_fraction": 0.95, "data_time_fraction": 0.0, "mfu": 0.05, "kernels_per_step": 2000.0}


@pytest.mark.parametrize(
    ("indicators", "commands"),
    [
        (
            SLOW,
            {
                "R1": "data.num_workers=auto",
                "R4": "train.channels_last=true",
                "R5": "parallel.slot_size=16",
                "R6": "train.global_batch_size=32",
                "R7": "",
                "R10": "",
                "R11": "checkpoint.every_steps=20",
            },
        ),
        (
            Indicators(**BUSY, mean_kernel_us=10.0, top10_kernel_fraction=0.2),
            {"R3": "train.compile=on", "R9": "train.precision=bf16"},
        ),
        (Indicators(gpu_busy_fraction=0.5, data_time_fraction=0.0, mean_kernel_us=3.0), {"R2": "train.compile=on"}),
    ],
)
def test_a_command_is_one_that_works(tmp_path: Path, indicators: Indicators, commands: dict[str, str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(small_config(checkpoint={"every_steps": 10})))
    found = diagnose(Case(indicators, CHOICE, load_config(path)))
    named = "shardline profile CONFIG "
    assert {each.rule: each.command.removeprefix(named) for each in found} == commands
    for finding in found:
        assert finding.command == "" or finding.command.startswith(named)
        assert finding.why
        changed = load_config(path, finding.command.removeprefix(named).split())
        assert (changed != load_config(path)) == bool(finding.command)


def test_no_flag_is_advised_that_is_chosen_already_or_refused_beside_another() -> None:
    slow = Indicators(**{**BUSY, "kernels_per_step": 1500.0}, mean_kernel_us=10.0, top10_kernel_fraction=0.2)
    flags = Flags(precision="bf16", channels_last=True, activation_checkpointing="whole")
    for chosen in (flags, flags.model_copy(update={"compile": True, "activation_checkpointing": "none"})):
        found = diagnose(Case(slow, CHOICE.model_copy(update={"flags": chosen}), config()))
        assert {each.rule for each in found} == {"R3", "R9"}
        assert not any(word in each.change for each in found for word in ("channels_last", "train.compile"))


def test_a_loader_that_was_tried_end_to_end_is_not_advised_again() -> None:
    tried = POINT.model_copy(update={"num_workers": 4, "samples_per_s": 99.0})
    given = {"points": [POINT, tried], "compute": [ALONE], "loader": [loader(2, 105.0), loader(4, 200.0)]}
    found = findings(STARVED, [], **given)["R1"]
    assert "num_workers" not in found.change
    assert found.gain == pytest.approx(2.5)
    assert found.gain_from.startswith("at most: steps alone reach 250")


def test_what_is_pinned_is_said() -> None:
    given = {"points": [POINT], "compute": [ALONE], "loader": [loader(2, 105.0)]}
    pinned = config(data={"num_workers": 2})
    change = findings(STARVED, [], **given, config=pinned)["R1"].change
    assert "set data.num_workers=auto: it is pinned at 2" in change
    assert "pinned" not in findings(STARVED, [], **given, config=config())["R1"].change


def test_a_larger_slot_gains_what_it_was_measured_at(tmp_path: Path) -> None:
    summary = summarise(write_gpu_trace(tmp_path / "t.json", kernel_us=3.0, kernels=150))
    larger = ComputePoint(slot_size=64, threads=1, samples_per_s=400.0)
    found = findings(Counters(data_time_fraction=0.0), [summary], compute=[ALONE, larger])["R2"]
    assert found.gain == pytest.approx(1.6)
    assert "parallel.slot_size=64" in found.change
    failed = ComputePoint(slot_size=64, threads=1, outcome="out of memory")
    assert findings(Counters(data_time_fraction=0.0), [summary], compute=[ALONE, failed])["R2"].gain != 1.6


@pytest.mark.parametrize(
    ("rule", "what_is_wrong", "counted", "setting"),
    [
        ("R2", {"kernel_us": 3.0, "kernels": 150}, {}, "train.compile=on"),
        ("R4", {"layout_share": 0.25}, {}, "train.channels_last=true"),
        ("R9", {}, {"flops_per_sample": 1e9, "precision": "fp32", "samples_per_s": 10.0}, "train.precision=bf16"),
    ],
)
def test_flags_gain_what_they_were_measured_at(
    tmp_path: Path, rule: str, what_is_wrong: dict[str, Any], counted: dict[str, Any], setting: str
) -> None:
    summary = summarise(write_gpu_trace(tmp_path / "t.json", **what_is_wrong))
    measured = Counters(data_time_fraction=0.0, **counted)
    tried = [
        Recommendation(setting=setting, gain=1.37, evidence="137 samples/s, not 100"),
        Recommendation(setting="train.other=x", gain=3.0, evidence=""),
    ]
    found = findings(measured, [summary], recommendations=tried)[rule]
    assert (found.change, found.gain) == (f"set {setting}", 1.37)
    assert found.gain_from == "measured: 137 samples/s, not 100"


@pytest.mark.parametrize(
    ("what_is_wrong", "counted"),
    [
        ({"kernel_us": 3.0, "kernels": 150}, {}),
        ({"layout_share": 0.25}, {}),
        ({}, {"flops_per_sample": 1e9, "precision": "fp32", "samples_per_s": 10.0}),
        ({"loader_us": 30000.0}, {}),
    ],
)
def test_of_texts_no_advice_is_about_images_or_refused(
    tmp_path: Path, what_is_wrong: dict[str, Any], counted: dict[str, Any]
) -> None:
    summary = summarise(write_gpu_trace(tmp_path / "t.json", **what_is_wrong))
    measured = Counters(data_time_fraction=0.3 if what_is_wrong.get("loader_us") else 0.0, **counted)
    words = ("channels_last", "train.compile", "images")
    for means in (True, False):
        found = findings(measured, [summary], compiles=means, has_layout=means, has_images=means).values()
        assert found and all(each.change for each in found)
        assert any(word in each.change for each in found for word in words) == means


# --- all of them ------------------------------------------------------------------------------------------------------


def test_the_worst_comes_first() -> None:
    bad = Indicators(data_time_fraction=0.7, checkpoint_stall_fraction=0.05, slowest_rank_ratio=1.2)
    found = diagnose(Case(bad, CHOICE, config()))
    assert [finding.rule for finding in found] == ["R1", "R10", "R11"]
    worse = bad.model_copy(update={"checkpoint_stall_fraction": 0.15, "slowest_rank_ratio": 4.0})
    found = diagnose(Case(worse, CHOICE, config()))
    assert [finding.rule for finding in found] == ["R10", "R1", "R11"]
    assert [finding.severity for finding in found] == ["bad"] * 3


fractions = st.none() | st.floats(0, 1)
counts = st.none() | st.integers(0, 1 << 40)
NAMES = {
    name: counts if name.endswith("_bytes") or name in ("pageable_copies", "allocation_retries") else fractions
    for name in Indicators.model_fields
}


@given(st.fixed_dictionaries(NAMES))
def test_gains_are_gains_and_every_finding_says_why(values: dict[str, Any]) -> None:
    indicators = Indicators(**values)
    for finding in diagnose(Case(indicators, CHOICE, config())):
        assert finding.evidence and finding.change and finding.title and finding.why
        assert finding.gain is None or finding.gain >= 1
        assert (finding.gain is None) == (finding.gain_from == "")


@given(st.fixed_dictionaries(NAMES))
def test_a_rule_needs_what_it_looks_at(values: dict[str, Any]) -> None:
    needed = {
        "R1": ["data_time_fraction"],
        "R2": ["gpu_busy_fraction", "data_time_fraction"],
        "R3": ["gpu_busy_fraction", "kernels_per_step", "mean_kernel_us", "top10_kernel_fraction"],
        "R4": ["copy_kernel_fraction"],
        "R6": ["communication_fraction"],
        "R8": ["sync_fraction", "gpu_busy_fraction"],
        "R9": ["mfu", "gpu_busy_fraction"],
        "R10": ["slowest_rank_ratio"],
        "R11": ["checkpoint_stall_fraction"],
    }
    found = diagnose(Case(Indicators(**values), CHOICE, config()))
    for finding in found:
        assert all(values[name] is not None for name in needed.get(finding.rule, []))
