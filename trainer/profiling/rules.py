"""The diagnosis: what is slow in a configuration, by what it was seen, what to change, and what that would bring.

Each rule looks at one thing, and stays silent where that was not measured. A gain is a factor on samples per second
that follows from measured numbers: from two measurements of this run ("measured"), or from the time that would fall
away ("at most"); where neither is there it is None. docs/profiling.md lists the rules, and where their thresholds come
from.
"""

from __future__ import annotations

from collections.abc import Callable

from contracts.artifacts import Finding
from trainer.profiling import rules_device as device
from trainer.profiling import rules_waiting as waiting
from trainer.profiling.case import Case, Seen

# Each with why it matters.
RULES: dict[str, tuple[Callable[[Case], Seen | None], str]] = {
    "R1": (waiting.data_starved, "while a step waits for data, the processor or GPU that is paid for computes nothing"),
    "R2": (device.small_batch, "between small kernels the GPU waits for the host to queue the next one"),
    "R3": (
        device.many_kernels,
        "a kernel fills the GPU neither at its start nor at its end, and each reads and writes memory anew",
    ),
    "R4": (device.copying, "copies move values and compute nothing"),
    "R5": (device.memory_short, "a longer sample, or memory that another program takes, ends the training"),
    "R6": (
        waiting.exposed_exchange,
        "while gradients travel nothing is computed, and with more ranks they travel longer",
    ),
    "R7": (waiting.exposed_copies, "the GPU waits for what could have been copied while it computed"),
    "R8": (waiting.host_waits, "while the host waits it queues nothing, and the GPU runs dry"),
    "R9": (device.low_mfu, "busy is not fast: most of what this GPU can compute is not used"),
    "R10": (waiting.stragglers, "in each step all ranks wait for the slowest: its time is that of all"),
    "R11": (waiting.checkpoint_stalls, "while a checkpoint is copied no step is taken"),
}
_WORST_FIRST = ("bad", "warning", "note")


def diagnose(case: Case) -> list[Finding]:
    """Return the findings of all rules that fire, the worst first, of equally bad ones that of the largest gain."""
    found = [_finding(rule, why, seen) for rule, (look, why) in RULES.items() if (seen := look(case)) is not None]
    return sorted(found, key=lambda finding: (_WORST_FIRST.index(finding.severity), -(finding.gain or 0.0)))


def _finding(rule: str, why: str, seen: Seen) -> Finding:
    gain, title = seen.gain, seen.title
    if gain.factor is not None:
        title += f" (x {gain.factor:.2f} {'measured' if gain.source.startswith('measured') else 'at most'})"
    return Finding(
        rule=rule,
        severity=seen.severity,
        title=title,
        why=why,
        evidence=seen.evidence,
        change=seen.change,
        command=" ".join(["shardline profile CONFIG", *seen.overrides]) if seen.overrides else "",
        gain=gain.factor,
        gain_from=gain.source,
    )
