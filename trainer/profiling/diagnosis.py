"""What is slow about the configuration that was chosen: counted and traced by the probe, judged by the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from contracts.artifacts import Finding, Indicators, Settings
from contracts.artifacts.trace import TraceSummary
from contracts.config import CheckpointSection, RunConfig
from contracts.errors import DataError
from trainer.profiling.anonymous import strip_host
from trainer.profiling.case import Case
from trainer.profiling.indicators import Counted, Counters, make_indicators
from trainer.profiling.ledger import Result
from trainer.profiling.measure import Failed, Hello, highest
from trainer.profiling.peaks import Precision
from trainer.profiling.probe import RankProbe
from trainer.profiling.rules import diagnose
from trainer.profiling.trace import summarise

# What counts of the fullest, or worst, rank.
_HIGHEST = (
    *("copy_wait_fraction", "memory_peak_bytes", "memory_reserved_bytes", "allocation_retries"),
    "nvml_utilisation_fraction",
)


@dataclass(frozen=True)
class Diagnosis:
    """What was found about a configuration."""

    indicators: Indicators = field(default_factory=Indicators)
    findings: list[Finding] = field(default_factory=list)
    summaries: list[TraceSummary] = field(default_factory=list)
    """Of the traces, by rank."""
    warnings: list[str] = field(default_factory=list)


def diagnose_choice(config: RunConfig, probe: RankProbe, result: Result, *, hello: Hello, folder: Path) -> Diagnosis:
    """Count and trace the chosen configuration on all ranks, and say what is slow.

    Args:
        config: The configuration.
        probe: What measures.
        result: Of the sweep.
        hello: What the ranks run on.
        folder: For the traces, a file a rank.
    """
    settings = result.choice.settings()
    warnings, summaries = list[str](), list[TraceSummary]()
    # Where it cannot be traced, what is counted without a trace.
    for steps in (TRACE_STEPS, 0):
        counted = probe.trace(settings, steps=steps, folder=folder)
        if not isinstance(counted, Failed):
            break
        warnings = [f"the chosen configuration could not be traced: {counted.outcome}: {counted.reason}"]
    else:
        return Diagnosis(warnings=warnings)
    for one in counted:
        paths = [folder / name for name in one.files]
        if not paths:
            continue
        try:
            for path in paths:
                strip_host(path)
            summaries.append(summarise(*paths))
        except DataError as error:
            # What was measured is worth more than its trace.
            warnings.append(f"a trace could not be read: {error.given}")
            for path in paths:
                path.unlink(missing_ok=True)
    indicators = make_indicators(count_ranks(config, settings, counted, hello), summaries)
    measured = (result.loader, result.points, result.compute, result.memory, result.recommendations)
    case = Case(
        *(indicators, result.choice, config, *measured, summaries),
        compiles=hello.compiles,
        has_layout=hello.has_layout,
        has_images=hello.has_images,
    )
    return Diagnosis(indicators, diagnose(case), summaries, warnings)


# Optimizer steps of the chosen configuration that are traced.
TRACE_STEPS = 4


def count_ranks(config: RunConfig, settings: Settings, counted: Sequence[Counted], hello: Hello) -> Counters:
    """Return what the ranks counted as one: that of the slowest or fullest where a step waits for it."""
    slowest = max(counted, key=lambda one: one.step_s)
    precision: Precision = settings.flags.precision
    if precision == "fp32" and hello.kind == "cuda":
        precision = "tf32"
    return Counters(
        step_s=slowest.step_s,
        samples_per_s=min(one.samples_per_s for one in counted),
        data_time_fraction=median(one.data_time_fraction for one in counted),
        flops_per_sample=counted[0].flops_per_sample,
        precision=precision,
        gpu_name=hello.name if hello.kind == "cuda" else None,
        memory_limit_bytes=min((one.memory_limit_bytes for one in counted if one.memory_limit_bytes), default=None),
        checkpoint_stall_fraction=_stall(config.checkpoint, counted, slowest.step_s),
        **{name: highest([getattr(one, name) for one in counted]) for name in _HIGHEST},
        rank_step_s=tuple(
            one.alone_slot_s * settings.slots_per_rank for one in counted if one.alone_slot_s is not None
        ),
    )


def _stall(rules: CheckpointSection, counted: Sequence[Counted], step_s: float) -> float | None:
    """Return the share of time for which steps stand still for checkpoints, at the interval that training will have."""
    copy_s = highest([one.checkpoint_copy_s for one in counted])
    if copy_s is None:
        return None
    interval_s = rules.interval_s if rules.every_steps is None else rules.every_steps * step_s
    return copy_s / (interval_s + copy_s)
