"""Diagnosis of the chosen settings: indicators from counters and traces, and six rules on them (docs/profiling.md).

A rule fires on measured values only, and gives an upper bound of the step time that its change could save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from contracts.artifacts import ComputePoint, Finding, Indicators, LoaderPoint, ProfileChoice, TraceSummary
from contracts.config import RunConfig
from trainer.launch.choices import default_channels_last, default_precision
from trainer.profiling.flops import Precision, peak_flops
from trainer.profiling.runner import Counters, Device
from trainer.profiling.trace import COPY_KERNEL, COPY_OPERATORS

# Targets of the reference document: GPU busy above 80 %, data time below 20 %.
BUSY_TARGET, DATA_TIME_TARGET = 0.80, 0.20
# The host takes 5 to 10 us to launch a kernel; the GPU waits for the host if kernels are shorter than twice that.
SMALL_KERNEL_US = 20.0
COPY_KERNELS, EXPOSED_COPIES = 0.10, 0.05
MEMORY_TARGET = 0.92
EXCHANGE_TARGET = 0.15
MFU_TARGET, MFU_AT_BUSY = 0.25, 0.90
# Share of kernel time on tensor cores below which layout and element-wise kernels should be checked.
TENSOR_CORES = 0.50


@dataclass(frozen=True)
class Case:
    """Input of the rules."""

    config: RunConfig
    choice: ProfileChoice
    device: Device
    indicators: Indicators
    summary: TraceSummary | None
    loader: Sequence[LoaderPoint]
    compute: Sequence[ComputePoint]

    @property
    def half_precision(self) -> Precision:
        """Lower precision that the device supports best."""
        return "bf16" if self.device.has_bf16 else "fp16"

    @property
    def may_compile(self) -> bool:
        """Whether to recommend train.compile=on."""
        train = self.config.train
        return self.device.compiles and train.compile != "on" and train.activation_checkpointing != "whole"

    @property
    def may_change_layout(self) -> bool:
        """Whether to recommend train.channels_last=true."""
        channels_last = self.config.train.channels_last
        return self.device.has_layout and not (default_channels_last() if channels_last == "auto" else channels_last)


class Diagnosis(NamedTuple):
    """Evidence, changes, and the largest share of the step's time that they could save; None: it saves no time."""

    evidence: list[str]
    changes: list[str]
    time_share: float | None


def diagnose(
    config: RunConfig,
    choice: ProfileChoice,
    device: Device,
    counters: Sequence[Counters],
    summaries: Sequence[TraceSummary],
    *,
    loader: Sequence[LoaderPoint] = (),
    compute: Sequence[ComputePoint] = (),
) -> tuple[Indicators, list[Finding]]:
    """Return the indicators of the chosen settings and the findings, the largest possible saving first.

    Args:
        config: The training.
        choice: The chosen settings.
        device: Device of the ranks.
        counters: Measurements without the profiler, by rank; not empty.
        summaries: Trace summaries by rank; empty where nothing could be traced.
        loader: Measurements of the loader alone, for evidence.
        compute: Measurements of steps alone, for evidence.
    """
    # The slowest rank, which waits least for the others.
    summary = min(summaries, key=lambda entry: (sum(entry.exchanges_s), entry.rank), default=None)
    indicators = _indicators(config, device, counters, summary, _exchange_fraction(summaries))
    case = Case(config, choice, device, indicators, summary, loader, compute)
    findings = [
        Finding(
            rule=name,
            title=title,
            why=why,
            evidence=diagnosis.evidence,
            change="; ".join(diagnosis.changes),
            time_share=diagnosis.time_share,
        )
        for name, (rule, title, why) in RULES.items()
        if (diagnosis := rule(case)) is not None
    ]
    return indicators, sorted(findings, key=lambda finding: -(finding.time_share or 0.0))


def _indicators(
    config: RunConfig,
    device: Device,
    counters: Sequence[Counters],
    summary: TraceSummary | None,
    communication_fraction: float | None,
) -> Indicators:
    """Return the indicators; where ranks differ, those of the slowest rank or of the one with the least memory."""
    rate = min(each.samples_per_s for each in counters)
    data_time = max(each.data_time_fraction for each in counters)
    if summary is not None and summary.device == "gpu" and summary.step_s > 0:
        # Waiting in next() costs nothing while the GPU still computes.
        data_time = summary.breakdown_s.get("loader", 0.0) / summary.step_s
    flops, peak = counters[0].flops_per_sample, _peak(device, _precision(config))
    traced = (
        *("gpu_busy_fraction", "exposed_copy_fraction", "pageable_copies", "copy_kernel_fraction"),
        *("tensor_core_fraction", "kernels_per_step", "mean_kernel_us"),
    )
    return Indicators(
        step_s=max(each.step_s for each in counters),
        data_time_fraction=min(1.0, data_time),
        mfu=flops * rate / peak if flops and peak else None,
        flops_per_sample=flops,
        peak_flops=peak,
        communication_fraction=communication_fraction,
        memory_peak_bytes=max((each.memory_peak_bytes for each in counters if each.memory_peak_bytes), default=None),
        memory_limit_bytes=min((each.memory_limit_bytes for each in counters if each.memory_limit_bytes), default=None),
        **{name: getattr(summary, name) for name in traced if summary is not None},
    )


def _exchange_fraction(summaries: Sequence[TraceSummary]) -> float | None:
    """Return the share of a step that exchange takes without waiting for other ranks; None for one rank.

    In each step the last rank does not wait, so the shortest time over ranks is that of the exchange itself. The median
    over steps ignores steps that another program slowed down.
    """
    if len(summaries) < 2:
        return None
    exchanges_s: list[float] = [min(times) for times in zip(*(entry.exchanges_s for entry in summaries), strict=False)]
    return min(1.0, median(exchanges_s) / median(entry.step_s for entry in summaries)) if exchanges_s else None


def _precision(config: RunConfig) -> Precision:
    return default_precision() if config.train.precision == "auto" else config.train.precision


def _peak(device: Device, precision: Precision) -> float | None:
    """Return the peak FLOP/s of a GPU; training allows TF32."""
    gpu_name = device.name if device.kind == "cuda" else None
    return peak_flops(gpu_name, "tf32" if precision == "fp32" else precision)


# --- rules ------------------------------------------------------------------------------------------------------------


def _data_time(case: Case) -> Diagnosis | None:
    share, busy = case.indicators.data_time_fraction, case.indicators.gpu_busy_fraction
    if share is None or share < DATA_TIME_TARGET or (busy is not None and busy >= BUSY_TARGET):
        return None
    evidence = [f"data time {share:.0%} of a step (target: below {DATA_TIME_TARGET:.0%})"]
    if busy is not None:
        evidence.append(f"GPU busy {busy:.0%} (target: above {BUSY_TARGET:.0%})")
    steps = [p.samples_per_s for p in case.compute if p.slot_size == case.choice.slot_size and p.samples_per_s]
    evidence += [f"steps alone: {rate:.4g} samples/s per rank" for rate in steps[:1]]
    rates = [(point.samples_per_s, -point.num_workers) for point in case.loader if point.samples_per_s]
    if rates:
        rate, workers = max(rates)
        evidence.append(f"loader alone: at most {rate:.4g} samples/s per rank, workers: {-workers}")
    changes = ["give each rank more cores (resources.machine, resources.ranks)", "store smaller samples in the shards"]
    if case.config.data.num_workers != "auto":
        changes.insert(0, f"set data.num_workers=auto; it is {case.config.data.num_workers}")
    return Diagnosis(evidence, changes, share)


def _small_kernels(case: Case) -> Diagnosis | None:
    values = case.indicators
    busy, mean_us = values.gpu_busy_fraction, values.mean_kernel_us
    if busy is None or busy >= BUSY_TARGET or (values.data_time_fraction or 0.0) >= DATA_TIME_TARGET:
        return None
    if mean_us is None or mean_us >= SMALL_KERNEL_US:
        return None
    changes = ["set train.compile=on, which fuses kernels"] if case.may_compile else []
    changes += ["use larger slots (parallel.slot_size)"] if case.choice.slots_per_rank > 1 else []
    evidence = [
        f"GPU busy {busy:.0%} (target: above {BUSY_TARGET:.0%})",
        f"{values.kernels_per_step or 0:.0f} kernels per step",
        f"{mean_us:.3g} us per kernel on average (small: below {SMALL_KERNEL_US:.0f} us)",
    ]
    return Diagnosis(evidence, changes or ["use a larger train.global_batch_size"], 1 - busy)


def _copies(case: Case) -> Diagnosis | None:
    values, summary = case.indicators, case.summary
    share, exposed = values.copy_kernel_fraction or 0.0, values.exposed_copy_fraction or 0.0
    if summary is None or (share <= COPY_KERNELS and exposed <= EXPOSED_COPIES):
        return None
    busy, evidence, changes = values.gpu_busy_fraction, list[str](), list[str]()
    if share > COPY_KERNELS:
        time = "kernel time" if busy is not None else "operator time"
        evidence.append(f"{share:.0%} of {time} in copies and layout changes (target: {COPY_KERNELS:.0%})")
        rows = [(row.self_s, row.name) for row in summary.operators if row.name in COPY_OPERATORS]
        if busy is not None:
            rows = [(row.total_s, row.name) for row in summary.kernels if COPY_KERNEL.search(row.name)]
        longest = sorted(rows, reverse=True)[:3]
        evidence += [f"{name[:60]}: {seconds / summary.steps * 1e3:.3g} ms per step" for seconds, name in longest]
        changes += ["try train.channels_last=true"] if case.may_change_layout else []
        changes.append("look for .contiguous(), .permute() and casts in the model")
    if exposed > EXPOSED_COPIES:
        evidence.append(f"{exposed:.0%} of a step in copies that no kernel hides (target: {EXPOSED_COPIES:.0%})")
        evidence.append(f"{values.pageable_copies} copies per step from memory that is not page-locked")
        pageable = "page-lock the host memory of copies (pin_memory)"
        changes.append(pageable if values.pageable_copies else "move fewer bytes per sample to the device")
    return Diagnosis(evidence, changes, min(1.0, share * (1.0 if busy is None else busy) + exposed))


def _memory(case: Case) -> Diagnosis | None:
    peak, limit = case.indicators.memory_peak_bytes, case.indicators.memory_limit_bytes
    if peak is None or not limit or peak / limit <= MEMORY_TARGET:
        return None
    changes, train = ["use smaller slots (parallel.slot_size)"], case.config.train
    if train.activation_checkpointing != "whole" and train.compile != "on":
        changes.append("set train.activation_checkpointing=whole")
    if _precision(case.config) == "fp32" and case.device.kind == "cuda":
        changes.append(f"set train.precision={case.half_precision}")
    amount = f"peak of a rank: {peak / 1e9:.3g} GB of {limit / 1e9:.3g} GB"
    return Diagnosis([amount, f"{peak / limit:.0%} (target: {MEMORY_TARGET:.0%})"], changes, None)


def _exposed_exchange(case: Case) -> Diagnosis | None:
    share = case.indicators.communication_fraction
    if share is None or share <= EXCHANGE_TARGET:
        return None
    evidence = [
        f"exchange with no kernel beside it: {share:.0%} of a step (target: {EXCHANGE_TARGET:.0%})",
        f"slots per rank before each exchange: {case.choice.slots_per_rank}",
    ]
    changes = ["use a larger train.global_batch_size", "use fewer machines, or machines with a faster network"]
    return Diagnosis(evidence, changes, share)


def _low_mfu(case: Case) -> Diagnosis | None:
    values, precision = case.indicators, _precision(case.config)
    busy, mfu, peak = values.gpu_busy_fraction, values.mfu, values.peak_flops
    if busy is None or mfu is None or peak is None or busy <= MFU_AT_BUSY or mfu >= MFU_TARGET:
        return None
    evidence = [f"MFU {mfu:.0%} at GPU busy {busy:.0%} (target: {MFU_TARGET:.0%})", f"precision {precision}"]
    changes, best_peak = [], peak
    if precision == "fp32":
        best_peak = max(peak, _peak(case.device, case.half_precision) or 0.0)
        changes.append(f"set train.precision={case.half_precision}")
    if values.tensor_core_fraction is not None:
        evidence.append(f"{values.tensor_core_fraction:.0%} of kernel time on tensor cores, by kernel names")
        if values.tensor_core_fraction < TENSOR_CORES:
            changes += ["set train.channels_last=true, the layout of tensor cores"] if case.may_change_layout else []
            changes += ["set train.compile=on, which fuses element-wise kernels"] if case.may_compile else []
    changes.append("make channels and widths multiples of 8")
    return Diagnosis(evidence, changes, 1 - mfu * peak / best_peak)


RULES: dict[str, tuple[Callable[[Case], Diagnosis | None], str, str]] = {
    "R1": (_data_time, "Steps wait for data", "nothing is computed while a step waits for its samples"),
    "R2": (
        _small_kernels,
        "The GPU is idle between small kernels",
        "launching a kernel takes the host longer than the GPU takes to run it",
    ),
    "R4": (_copies, "Copies and layout changes take much of the time", "copies move values and compute nothing"),
    "R5": (
        _memory,
        "Memory is nearly full",
        "a longer sample, or memory that another program takes, ends the training",
    ),
    "R6": (
        _exposed_exchange,
        "Exchange between ranks is not hidden behind computing",
        "nothing is computed while gradients travel, and with more ranks they travel longer",
    ),
    "R9": (_low_mfu, "The GPU is busy, but computes little", "most of the GPU's peak is unused"),
}
"""Rules with their title and why it matters; the numbers are those of docs/profiling.md."""
