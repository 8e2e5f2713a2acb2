"""The diagnosis: what is slow in a configuration, by what it was seen, what to change, and what that would bring.

Each rule looks at one thing, and stays silent where that was not measured. A gain is a factor on samples per second
that follows from measured numbers: from two measurements of this run ("measured"), or from the time that would fall
away ("at most"); where neither is there it is None. docs/profiling.md lists the rules, and where their thresholds come
from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contracts.artifacts import (
    ComputePoint,
    Finding,
    Indicators,
    LoaderPoint,
    MemoryModel,
    ProfileChoice,
    ProfilePoint,
    Recommendation,
)
from contracts.artifacts.trace import TraceSummary
from contracts.config import RunConfig
from trainer.profiling import rules_device as device
from trainer.profiling import rules_waiting as waiting
from trainer.profiling.case import Case, Workload

RULES: dict[str, Callable[[Case], Finding | None]] = {
    "R1": waiting.data_starved,
    "R2": device.small_batch,
    "R3": device.many_kernels,
    "R4": device.copying,
    "R5": device.memory_short,
    "R6": waiting.exposed_exchange,
    "R7": waiting.exposed_copies,
    "R8": waiting.host_waits,
    "R9": device.low_mfu,
    "R10": waiting.stragglers,
    "R11": waiting.checkpoint_stalls,
}
# Why it matters.
WHY = {
    "R1": "while a step waits for data, the processor or GPU that is paid for computes nothing",
    "R2": "between small kernels the GPU waits for the host to queue the next one",
    "R3": "a kernel fills the GPU neither at its start nor at its end, and each reads and writes memory anew",
    "R4": "copies move values and compute nothing",
    "R5": "a longer sample, or memory that another program takes, ends the training",
    "R6": "while gradients travel nothing is computed, and with more ranks they travel longer",
    "R7": "the GPU waits for what could have been copied while it computed",
    "R8": "while the host waits it queues nothing, and the GPU runs dry",
    "R9": "busy is not fast: most of what this GPU can compute is not used",
    "R10": "in each step all ranks wait for the slowest: its time is that of all",
    "R11": "while a checkpoint is copied no step is taken",
}
_WORST_FIRST = ("bad", "warning", "note")


def diagnose(
    indicators: Indicators,
    *,
    choice: ProfileChoice,
    config: RunConfig,
    loader: Sequence[LoaderPoint] = (),
    points: Sequence[ProfilePoint] = (),
    compute: Sequence[ComputePoint] = (),
    memory: Sequence[MemoryModel] = (),
    recommendations: Sequence[Recommendation] = (),
    summaries: Sequence[TraceSummary] = (),
    workload: Workload | None = None,
) -> list[Finding]:
    """Return the findings of all rules that fire, the worst first, of equally bad ones that of the largest gain.

    Args:
        indicators: Of the choice.
        choice: What was chosen.
        config: What it was chosen for: what is pinned there is named as what to change.
        loader: The input pipeline alone, as far as it was measured.
        points: End to end, likewise.
        compute: Steps alone, likewise.
        memory: Lines of memory by slot size.
        recommendations: Flags that were measured beside those that are set.
        summaries: Of the traces of all ranks, for names of kernels and operators.
        workload: Which settings mean anything to the task; None: all do.
    """
    measured = (loader, points, compute, memory, recommendations, summaries)
    case = Case(indicators, choice, config, *measured, workload=workload or Workload())
    found = [finding for rule in RULES.values() if (finding := rule(case)) is not None]
    found.sort(key=lambda finding: (_WORST_FIRST.index(finding.severity), -(finding.gain or 0.0)))
    return [finding.model_copy(update={"title": _with_gain(finding), "why": WHY[finding.rule]}) for finding in found]


def _with_gain(finding: Finding) -> str:
    """Return the title of a finding with its gain, and whether that was measured."""
    if finding.gain is None:
        return finding.title
    kind = "measured" if finding.gain_from.startswith("measured") else "at most"
    return f"{finding.title} (x {finding.gain:.2f} {kind})"
