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
    return [finding.model_copy(update={"title": _with_gain(finding)}) for finding in found]


def _with_gain(finding: Finding) -> str:
    """Return the title of a finding with its gain, and whether that was measured."""
    if finding.gain is None:
        return finding.title
    kind = "measured" if finding.gain_from.startswith("measured") else "at most"
    return f"{finding.title} (x {finding.gain:.2f} {kind})"
