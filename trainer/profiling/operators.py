"""What torch's operators took on the host, operator by operator, with what they launched on the GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.artifacts.trace import OperatorRow
from trainer.profiling.kernels import COPYING_OPERATORS
from trainer.profiling.kineto import Event


def operator_rows(operators: Sequence[Event], on_gpu: Sequence[Event] | None) -> tuple[OperatorRow, ...]:
    """Return a row for each operator, that of most time of its own first.

    Args:
        operators: Events of the category cpu_op, in the order of a trace.
        on_gpu: Kernels and copies; None: there is no GPU.
    """
    by_name: dict[str, list[Call]] = defaultdict(list)
    for call in calls(operators):
        by_name[call.event.name].append(call)
    launched_by, device_us = names_by_external_id(operators), dict[str, float]()
    for event in on_gpu or ():
        name = launched_by.get(str(event.arguments.get("External id")), "")
        device_us[name] = device_us.get(name, 0.0) + event.duration_us
    rows = [
        OperatorRow(
            name=name,
            calls=len(found),
            total_s=sum(call.event.duration_us for call in found if not call.within_itself) / 1e6,
            self_s=sum(call.self_us for call in found) / 1e6,
            device_s=None if on_gpu is None else device_us.get(name, 0.0) / 1e6,
        )
        for name, found in by_name.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.device_s or 0.0), -row.self_s, row.name)))


def names_by_external_id(operators: Sequence[Event]) -> dict[str, str]:
    """Return the operators by the id that their kernels carry: a kernel's is that of the innermost operator."""
    return {str(event.arguments["External id"]): event.name for event in operators if "External id" in event.arguments}


def copying_fraction(rows: Sequence[OperatorRow]) -> float | None:
    """Return the share of the operators' own time in copies and changes of layout; None without operators."""
    total = sum(row.self_s for row in rows)
    copying = sum(row.self_s for row in rows if row.name in COPYING_OPERATORS)
    return copying / total if total > 0 else None


@dataclass(slots=True)
class Call:
    """One call of an operator."""

    event: Event
    depth: int
    """Of the operators that it was called by."""
    within_itself: bool
    """Whether an operator of the same name is among those."""
    children_us: float = 0.0

    @property
    def self_us(self) -> float:
        """Its own time, without that of the operators that it called, in microseconds."""
        return max(0.0, self.event.duration_us - self.children_us)


def calls(operators: Sequence[Event]) -> Iterator[Call]:
    """Yield calls with their place in each other, thread by thread; `operators` are in the order of a trace."""
    threads: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in operators:
        threads[event.process, event.thread].append(event)
    for events in threads.values():
        found: list[Call] = []
        stack: list[Call] = []
        for event in events:
            while stack and stack[-1].event.end_us <= event.start_us:
                stack.pop()
            if stack:
                # What reaches beyond its caller, by the clock's rounding, counts as far as the caller goes.
                stack[-1].children_us += min(event.end_us, stack[-1].event.end_us) - event.start_us
            same = any(call.event.name == event.name for call in stack)
            call = Call(event, len(stack), same)
            stack.append(call)
            found.append(call)
        yield from found
