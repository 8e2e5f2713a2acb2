"""Which nodes of an fp16 graph stay in fp32: at most four tries, each with more of them.

Here: `find_fp16` (convert, judge, keep more, again) and `next_kept`, its policy. Run by choosing.py. First stays what
the range gate and weights that fp16 cannot hold demand, and what prepares inputs; then norms and softmax; then, twice,
the nodes that lose most on the GPU (layer_errors.py), or where that cannot be measured those with the largest values.
When all fail, the stage falls back to fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contracts.artifacts.export import Attempt, Gate
from contracts.errors import ModelError
from trainer.export.graph.coverage import LIMITS, WEIGHT_BYTES
from trainer.export.graph.precision import Conversion, convert_to_fp16
from trainer.export.graph.ranges import NORMS_AND_SOFTMAX, NodeRange, judge_ranges, nodes_to_keep

# After the first try.
MAX_ROUNDS = 3
# What a round adds of the nodes that compute in floats, worst first.
WORST_SHARE = 0.1
# Share of the float32 graph's weight bytes that may stay: with a share s left, fp16 has (1 - s) / 2 of the
# (1 - s) / 2 + s that the file then holds, and the coverage gate wants a limit L of it, so s <= (1 - L) / (1 + L).
_LIMIT = LIMITS["fp16"][WEIGHT_BYTES]
MAX_WEIGHT_SHARE = (1 - _LIMIT) / (1 + _LIMIT)

MeasureErrors = Callable[[Path], Mapping[str, float]]
"""Returns by node what it loses in an fp16 graph; nothing where that cannot be measured."""


class Convert(Protocol):
    """What makes an fp16 graph: `convert_to_fp16`, or the same in a process of its own."""

    def __call__(self, source: Path, target: Path, *, keep_fp32: Sequence[str]) -> Conversion:
        """Write `target` from `source` with the named nodes in fp32."""


@dataclass(frozen=True)
class Search:
    """What was tried, in order; the last try's graph is at the target."""

    attempts: list[Attempt]
    gates: list[Gate]
    """Of the last try: range first, then the judge's; none where there was no graph to judge."""

    @property
    def found(self) -> bool:
        """Whether the last try passed; if not, the stage falls back to fp32."""
        return self.attempts[-1].outcome == "kept"


def find_fp16(
    source: Path,
    target: Path,
    *,
    ranges: Mapping[str, NodeRange],
    judge: Callable[[Path], list[Gate]],
    measure_errors: MeasureErrors = lambda graph: {},
    convert: Convert = convert_to_fp16,
) -> Search:
    """Write an fp16 graph that passes its gates, with as few nodes in fp32 as the rounds find.

    A round that has nothing to add is left out. A graph that holds too few weights in fp16 ends the search: keeping
    more nodes in fp32 cannot mend that; nor a graph that cannot be converted.

    Args:
        source: The float32 graph.
        target: File to write.
        ranges: By node, of the float32 graph (`ranges.measure_ranges`).
        judge: Returns the gates of an fp16 graph, coverage among them.
        measure_errors: Is given the graph of the try before; by default it knows nothing.
        convert: Makes the graph.
    """
    attempts: list[Attempt] = []
    gates: list[Gate] = []
    kept: set[str] = set()
    chosen: list[str] = []
    for number in range(1 + MAX_ROUNDS):
        added, by = next_kept(number, ranges, kept, target, measure_errors)
        if number and not added:
            continue
        kept |= added
        chosen += [by] if added and by not in chosen else []
        try:
            conversion = convert(source, target, keep_fp32=[name for name in ranges if name in kept])
        except ModelError as error:
            attempts.append(Attempt(precision="fp16", outcome="failed", reason=str(error)))
            gates = []
            break
        kept |= set(conversion.kept_fp32)
        gates = [judge_ranges(ranges, conversion.kept_fp32), *judge(target)]
        failed = [gate for gate in gates if gate.status == "failed"]
        attempts.append(
            Attempt(
                precision="fp16",
                kept_fp32=conversion.kept_fp32,
                outcome="failed" if failed else "kept",
                reason=_in_words(chosen, conversion, failed),
            )
        )
        if not failed or any(gate.name == "coverage" for gate in failed):
            break
    return Search(attempts, gates)


def next_kept(
    number: int,
    ranges: Mapping[str, NodeRange],
    kept: Collection[str],
    graph: Path,
    measure_errors: MeasureErrors,
) -> tuple[set[str], str]:
    """Return the nodes that a round keeps in fp32 besides those of `kept`, and in words how they were chosen.

    Args:
        number: 0 for the first try, then 1 to `MAX_ROUNDS`.
        ranges: By node.
        kept: Nodes that are in fp32 already.
        graph: The fp16 graph of the try before.
        measure_errors: Called from the second round on.
    """
    if number == 0:
        return set(nodes_to_keep(ranges)) - set(kept), "by range or input"
    if number == 1:
        norms = {name for name, item in ranges.items() if item.op_type in NORMS_AND_SOFTMAX}
        return norms - set(kept), "norms and softmax"
    if errors := measure_errors(graph):
        return _worst(errors, ranges, kept), "largest errors"
    return _worst({name: item.largest for name, item in ranges.items()}, ranges, kept), "largest values"


def _worst(scores: Mapping[str, float], ranges: Mapping[str, NodeRange], kept: Collection[str]) -> set[str]:
    """Return the nodes with the largest scores, as many as a round adds and as the weights allow."""
    most = math.ceil(WORST_SHARE * len(ranges))
    left = MAX_WEIGHT_SHARE * sum(item.weight_bytes for item in ranges.values())
    left -= sum(ranges[name].weight_bytes for name in kept if name in ranges)
    found: set[str] = set()
    # Among equals the graph's order decides: sorted() is stable.
    for name in sorted((name for name in ranges if scores.get(name, 0.0) > 0), key=lambda name: -scores[name]):
        if len(found) == most:
            break
        if name not in kept and ranges[name].weight_bytes <= left:
            left -= ranges[name].weight_bytes
            found.add(name)
    return found


def _in_words(chosen: Sequence[str], conversion: Conversion, failed: Sequence[Gate]) -> str:
    parts = []
    if conversion.kept_fp32:
        by = f" ({' + '.join(chosen)})" if chosen else ""
        parts.append(f"{len(conversion.kept_fp32)} node(s) in fp32{by}: {_some(conversion.kept_fp32)}")
    if conversion.too_large:
        weights = [f"{name} ({size:.3g})" for name, size in conversion.too_large.items()]
        parts.append(f"fp16 cannot hold {len(weights)} weight(s): {_some(weights)}")
    if conversion.vanishing:
        parts.append(f"fp16 would make 0 of {len(conversion.vanishing)} scalar(s): {_some(conversion.vanishing)}")
    parts += [f"{gate.name} failed: {_figures(gate)}" for gate in failed]
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _figures(gate: Gate) -> str:
    parts = [
        f"{name} {gate.figures[name]} (limit {limit:g})" for name, limit in gate.limits.items() if name in gate.figures
    ]
    return ", ".join([*parts, *([gate.reason] if gate.reason else [])])
