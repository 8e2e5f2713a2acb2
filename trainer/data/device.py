"""Slots copied to the model's device beside what it computes, and the time that steps wait for data.

Bytes are copied, on a stream of their own; float32 is made on the device by the task's `to_model`. A step only queues
work, so the host asks for the next slot while the GPU computes this one: its copy runs at once, and the computation
that comes after waits for it by an event, not the host. Without a GPU nothing is copied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

# Slots that may lie on the GPU before they are computed. Without a bound the host, which only queues, would fill the
# GPU's memory with copies; with two a copy always runs beside a computation.
MOST_AHEAD = 2


@dataclass(frozen=True)
class DataTime:
    """Where the time of some steps went, in seconds."""

    wall_s: float
    """Of the steps, without evaluations and checkpoints."""
    loader_s: float
    """Inside next() of the loader. A GPU computes meanwhile what it was given before: at most this was lost."""
    copy_s: float | None
    """Of copies from host to device, by CUDA events; None: there is no GPU."""
    wait_s: float | None = None
    """In which the GPU only waited for a copy, by CUDA events; None: not measured."""

    def describe(self) -> str:
        """Return the shares of the wall time, in percent."""
        copy = "not measured" if self.copy_s is None else f"{self.share(self.copy_s):.1f} %"
        return f"data time {self.share(self.loader_s):.1f} % (host to device {copy})"

    def share(self, seconds: float) -> float:
        """Return seconds as percent of the wall time."""
        return 100 * seconds / self.wall_s if self.wall_s > 0 else 0.0


class DataClock:
    """Sums up the waiting of one rank for its data between two reports; with `waits`, also of its GPU for copies."""

    def __init__(self, device: torch.device, *, waits: bool = False) -> None:
        on_gpu = device.type == "cuda"
        self._copies: list[_Events] | None = [] if on_gpu else None
        self._waits: list[_Events] | None = [] if on_gpu and waits else None
        self._wall_s = self._loader_s = 0.0
        self._mark = time.perf_counter()

    def slots(self, slots: Iterator[Item]) -> Iterator[Item]:
        """Yield what a loader yields, and measure the time in its next()."""
        self.restart()
        while True:
            self.step_done()
            asked = self._mark
            try:
                slot = next(slots)
            except StopIteration:
                return
            self.step_done()
            self._loader_s += self._mark - asked
            yield slot

    def copying(self) -> AbstractContextManager[None]:
        """Measure copies to the device that are started inside, without waiting for them."""
        return _between(self._copies)

    def waiting(self) -> AbstractContextManager[None]:
        """Measure how long the current stream waits for what it is told inside to wait for, if the clock is to."""
        return _between(self._waits)

    def step_done(self) -> None:
        """Count the time until now as that of a step."""
        now = time.perf_counter()
        self._wall_s += now - self._mark
        self._mark = now

    def restart(self) -> None:
        """Leave out the time since the last slot, step or report: an evaluation or a checkpoint."""
        self._mark = time.perf_counter()

    def take(self) -> DataTime:
        """Return what was counted since the last call; on a GPU it waits for the newest copy."""
        self.step_done()
        counted = DataTime(self._wall_s, self._loader_s, _take(self._copies), _take(self._waits))
        self._wall_s = self._loader_s = 0.0
        return counted


_Events = tuple[torch.cuda.Event, torch.cuda.Event]


@contextmanager
def _between(events: list[_Events] | None) -> Iterator[None]:
    if events is None:
        yield
        return
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    yield
    end.record()
    events.append((begin, end))


def _take(events: list[_Events] | None) -> float | None:
    """Return the seconds between pairs of events, after waiting for the last of them, and forget them."""
    if not events:
        return None if events is None else 0.0
    events[-1][1].synchronize()
    seconds: float = sum(begin.elapsed_time(end) for begin, end in events) / 1000
    events.clear()
    return seconds


def to_device(items: Iterator[Item], device: torch.device, clock: DataClock) -> Iterator[Item]:
    """Yield items with all their tensors on the device, in order; on a CPU the items themselves.

    Items are tensors, or tuples, lists, dicts and dataclasses of them; pinned, or the copies block.
    """
    return _copy_ahead(items, device, clock) if device.type == "cuda" else items


def _copy_ahead(items: Iterator[Item], device: torch.device, clock: DataClock) -> Iterator[Item]:
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    computed: deque[torch.cuda.Event] = deque()
    for item in items:
        if len(computed) >= MOST_AHEAD:
            computed.popleft().synchronize()
        with torch.cuda.stream(copying), clock.copying():
            moved = map_tensors(item, lambda tensor: tensor.to(device, non_blocking=True))
        computing = torch.cuda.current_stream(device)
        with clock.waiting():
            computing.wait_stream(copying)
        # Allocated on one stream, read on the other: without this the allocator would give the memory away while the
        # computation still reads it.
        map_tensors(moved, partial(_used_on, stream=computing))
        yield moved
        # The caller comes back when it has queued all that reads the item.
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(device))
        computed.append(done)


def _used_on(tensor: torch.Tensor, *, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an item with its tensors changed, however deep they lie; what holds no tensor is the same object."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, dict):
        values = {key: map_tensors(value, change) for key, value in item.items()}
        return values if any(values[key] is not item[key] for key in item) else item
    if isinstance(item, (list, tuple)):
        changed = [map_tensors(value, change) for value in item]
        if all(new is old for new, old in zip(changed, item, strict=True)):
            return item
        # A named tuple takes its fields one by one.
        return type(item)(*changed) if hasattr(item, "_fields") else type(item)(changed)
    if is_dataclass(item) and not isinstance(item, type):
        values = {field.name: getattr(item, field.name) for field in fields(item) if field.init}
        moved = {name: map_tensors(value, change) for name, value in values.items()}
        different = {name: value for name, value in moved.items() if value is not values[name]}
        return replace(item, **different) if different else item
    return item


def leaves(item: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield everything in dictionaries, lists and tuples, however deep, after its name, such as ['boxes'][0]."""
    if isinstance(item, (dict, list, tuple)) and item:
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            yield from leaves(value, f"{name}[{key!r}]")
    else:
        yield name, item
