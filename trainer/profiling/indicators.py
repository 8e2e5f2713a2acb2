"""What is known of the chosen configuration, from counters of untraced steps and from the traces of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Annotated

from pydantic import ConfigDict, StringConstraints

from contracts.artifacts import Indicators
from contracts.artifacts.trace import TraceSummary
from trainer.profiling.peaks import Precision, peak_flops

# What a trace says by itself, under the same names there and here.
_TRACED = (
    *("gpu_busy_fraction", "occupancy_fraction", "exposed_copy_fraction", "pageable_copies", "sync_fraction"),
    *("sync_calls", "kernels_per_step", "mean_kernel_us", "top10_kernel_fraction", "copy_kernel_fraction"),
)
# How much longer than the shortest exchange of the traced steps one counts: undisturbed ones of gloo differ threefold
# (tests/trainer/profiling/traces/exchange-*.json.gz), those of a machine with other work twentyfold.
STEADY = 3


# Of a trace, in the folder for them: what another machine names must not lie beside it.
TraceName = Annotated[str, StringConstraints(pattern=r"^(details/)?rank-\d+\.\d+\.pt\.trace\.json\.gz$")]


class Counters(Indicators):
    """The indicators that the probe counts in steps that are not traced, and what others follow from.

    Of one rank `data_time_fraction` is waiting in next() of the loader, and for copies from the host; of
    `memory_limit_bytes` it is what this rank may take beside what others hold, as it was after these steps.
    """

    samples_per_s: float | None = None
    """Of one rank, the slowest."""
    precision: Precision | None = None
    """What products are computed in; fp32 on a GPU is tf32."""
    gpu_name: str | None = None
    rank_step_s: tuple[float, ...] = ()
    """Median time of a step of each rank without its waiting for the others, in seconds, by rank."""


class Counted(Counters):
    """What one rank counted, and the traces that it left."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    step_s: float
    samples_per_s: float
    data_time_fraction: float
    alone_slot_s: float | None = None
    """A slot that waits for no other rank, on a CPU in processor time; None: all of them do."""
    checkpoint_copy_s: float | None = None
    """For which steps stand still when a checkpoint is saved."""
    files: Mapping[TraceName, bytes] = {}
    """The light trace, then that with shapes and the allocator's events (`details/`); empty: none was asked for."""


def make_indicators(counters: Counters, summaries: Sequence[TraceSummary]) -> Indicators:
    """Return the indicators of a configuration.

    What traces say is taken from the rank that the others wait for: it spends least on waiting for them. What exchange
    costs is counted exchange by exchange (`exchange_fraction`).

    Args:
        counters: Of steps that were not traced.
        summaries: Of traced steps, by rank; may be empty.
    """
    last = last_to_arrive(summaries)
    gpu_name = counters.gpu_name or (last.gpu_name if last else None)
    peak = peak_flops(gpu_name, counters.precision) if counters.precision else None
    traced = {name: getattr(last, name) for name in _TRACED} if last else {}
    derived = {
        "data_time_fraction": _data_time(counters, last),
        "mfu": _utilisation(counters, peak),
        "peak_flops": peak,
        # A rank that is alone exchanges nothing: there is nothing to measure.
        "communication_fraction": exchange_fraction(summaries) if last and _exchanges(counters, summaries) else None,
        "memory_bound_fraction": sum(last.memory_bound.values()) if last and last.memory_bound is not None else None,
        "fragmentation_fraction": _fragmentation(counters),
        "slowest_rank_ratio": _slowest_ratio(counters, summaries),
        "profiler_ratio": last.step_s / counters.step_s if last and counters.step_s else None,
    }
    counted = {name: getattr(counters, name) for name in Indicators.model_fields}
    return Indicators.model_validate(counted | traced | derived)


def last_to_arrive(summaries: Sequence[TraceSummary]) -> TraceSummary | None:
    """Return the trace of the rank that the others wait for, from which indicators are taken; None: there is none."""
    return min(summaries, key=lambda summary: (summary.communication_fraction or 0.0, summary.rank), default=None)


def exchange_fraction(summaries: Sequence[TraceSummary]) -> float | None:
    """Return the share of a step that exchange between ranks costs, without waiting for the rank that comes last.

    All ranks take part in the same exchanges, and each ends on all of them at about the same time. Whoever comes last
    to one waits for nobody, so the shortest of the ranks' times is that of the exchange itself; which rank comes last
    may change from one to the next. Of the steps it is the lower median, and no more than `STEADY` times the least:
    what else a machine does makes some exchanges long, those of a CPU's threads above all, and what a network costs is
    there in every step. Where ranks' traces do not hold equally many exchanges, or steps do not, it is what the last
    rank spends.
    """
    last = last_to_arrive(summaries)
    if last is None or last.communication_fraction is None:
        return None
    per_step, more = divmod(len(last.exchanges_s), last.steps)
    if len(summaries) < 2 or more or len({len(summary.exchanges_s) for summary in summaries}) != 1:
        return last.communication_fraction
    itself_s: list[float] = [min(times) for times in zip(*(summary.exchanges_s for summary in summaries), strict=True)]
    of_steps_s: list[float] = [sum(itself_s[step * per_step : (step + 1) * per_step]) for step in range(last.steps)]
    if last.step_s <= 0:
        return last.communication_fraction
    return min(last.communication_fraction, min(median_low(of_steps_s), STEADY * min(of_steps_s)) / last.step_s)


def _exchanges(counters: Counters, summaries: Sequence[TraceSummary]) -> bool:
    seen = any(summary.communication_fraction for summary in summaries)
    return seen or len(summaries) > 1 or len(counters.rank_step_s) > 1


def _data_time(counters: Counters, last: TraceSummary | None) -> float | None:
    """Return the share of a step lost to waiting for data.

    On a GPU that is the GPU's idle time for it: the host may wait in next() while the GPU computes what it was given
    before, and nothing is lost. Without a GPU, or a trace of it, it is the host's waiting.
    """
    step_s = sum(last.breakdown_s.values()) if last is not None and last.device == "gpu" else 0.0
    if last is None or step_s <= 0:
        return counters.data_time_fraction
    return min(1.0, last.breakdown_s["loader"] / step_s + (counters.copy_wait_fraction or 0.0))


def _utilisation(counters: Counters, peak: float | None) -> float | None:
    if peak is None or counters.flops_per_sample is None or counters.samples_per_s is None:
        return None
    return counters.flops_per_sample * counters.samples_per_s / peak


def _fragmentation(counters: Counters) -> float | None:
    allocated, reserved = counters.memory_peak_bytes, counters.memory_reserved_bytes
    if allocated is None or not reserved:
        return None
    return max(0.0, 1 - allocated / reserved)


def own_step_s(summaries: Sequence[TraceSummary]) -> dict[int, float]:
    """Return seconds of a traced step of each rank without its exchange, which for most ranks is waiting for others."""
    return {summary.rank: summary.step_s * (1 - (summary.communication_fraction or 0.0)) for summary in summaries}


def _slowest_ratio(counters: Counters, summaries: Sequence[TraceSummary]) -> float | None:
    """Return the time of the slowest rank over that of the median one, each without waiting for the others.

    Where both were measured, steps alone and traced ones, it is the lesser ratio of that rank: what disturbed one of
    them is no property of a rank.
    """
    counted, traced = dict(enumerate(counters.rank_step_s)), own_step_s(summaries)
    ratios = []
    for own in (counted, traced):
        middle = median(own.values()) if len(own) > 1 else 0.0
        if middle > 0 and set(own) == set(counted or traced):
            ratios.append({rank: time / middle for rank, time in own.items()})
    return max(1.0, *(min(ratio[rank] for ratio in ratios) for rank in ratios[0])) if ratios else None
