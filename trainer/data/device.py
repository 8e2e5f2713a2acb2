"""Copy slots to the GPU while it computes, and measure the time that steps wait for data.

Slots are copied on a separate stream; the task's `to_model` converts them to float32 on the device. A step only queues
work, so the next slot is copied while the GPU computes this one; the GPU waits for the copy, not the host. On a CPU
nothing is copied.
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

# Maximum slots on the GPU before they are computed. Two are enough to overlap copy and computation; without a limit
# copies would fill the GPU's memory.
MOST_AHEAD = 2


@dataclass(frozen=True)
class DataTime:
    """Time of some steps, in seconds."""

    wall_s: float
    """Wall time of the steps, without evaluations and checkpoints."""
    loader_s: float
    """Time in next() of the loader; an upper bound of the loss, since the GPU computes meanwhile."""
    copy_s: float | None
    """Time of host-to-device copies, by CUDA events; None without a GPU."""
    wait_s: float | None = None
    """Time in which the GPU waited for a copy, by CUDA events; None: not measured."""

    def describe(self) -> str:
        """Describe the shares of the wall time."""
        copy = "not measured" if self.copy_s is None else f"{self.share(self.copy_s):.1f} %"
        return f"data time {self.share(self.loader_s):.1f} % (host to device {copy})"

    def share(self, seconds: float) -> float:
        """Return seconds as percent of the wall time."""
        return 100 * seconds / self.wall_s if self.wall_s > 0 else 0.0


class DataClock:
    """Measures one rank's wait for data between two reports; with `waits`, also its GPU's wait for copies."""

    def __init__(self, device: torch.device, *, waits: bool = False) -> None:
        on_gpu = device.type == "cuda"
        self._copies: list[_Events] | None = [] if on_gpu else None
        self._waits: list[_Events] | None = [] if on_gpu and waits else None
        self._wall_s = self._loader_s = 0.0
        self._mark = time.perf_counter()

    def slots(self, slots: Iterator[Item]) -> Iterator[Item]:
        """Yield a loader's slots, and measure the time in its next()."""
        self.restart()
        while True:
            self.step_done()
            started = self._mark
            try:
                slot = next(slots)
            except StopIteration:
                return
            self.step_done()
            self._loader_s += self._mark - started
            yield slot

    def copying(self) -> AbstractContextManager[None]:
        """Measure copies started in the block, without a sync."""
        return _between(self._copies)

    def waiting(self) -> AbstractContextManager[None]:
        """Measure the current stream's wait in the block, if enabled."""
        return _between(self._waits)

    def step_done(self) -> None:
        """Add the time since the last mark to the step time."""
        now = time.perf_counter()
        self._wall_s += now - self._mark
        self._mark = now

    def restart(self) -> None:
        """Exclude the time since the last mark: an evaluation or a checkpoint."""
        self._mark = time.perf_counter()

    def take(self) -> DataTime:
        """Return the times since the last call; on a GPU, wait for the last copy."""
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
    """Wait for the last event, return the seconds between pairs, and clear them."""
    if not events:
        return None if events is None else 0.0
    events[-1][1].synchronize()
    seconds: float = sum(begin.elapsed_time(end) for begin, end in events) / 1000
    events.clear()
    return seconds


def to_device(items: Iterator[Item], device: torch.device, clock: DataClock) -> Iterator[Item]:
    """Yield items with all tensors on the device, in order; on a CPU, the items themselves.

    Items are tensors, or tuples, lists, dicts and dataclasses of them. Copies block unless tensors are pinned.
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
        # The allocator must not reuse memory that another stream still reads.
        map_tensors(moved, partial(_record_stream, stream=computing))
        yield moved
        # The caller has queued all reads of the item.
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        computed.append(event)


def _record_stream(tensor: torch.Tensor, *, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply `change` to all tensors in nested containers; containers without changes are returned as they are."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, dict):
        values = {key: map_tensors(value, change) for key, value in item.items()}
        return values if any(values[key] is not item[key] for key in item) else item
    if isinstance(item, (list, tuple)):
        changed = [map_tensors(value, change) for value in item]
        if all(mapped is original for mapped, original in zip(changed, item, strict=True)):
            return item
        # Named tuples take their fields as arguments.
        return type(item)(*changed) if hasattr(item, "_fields") else type(item)(changed)
    if is_dataclass(item) and not isinstance(item, type):
        values = {field.name: getattr(item, field.name) for field in fields(item) if field.init}
        moved = {name: map_tensors(value, change) for name, value in values.items()}
        different = {name: value for name, value in moved.items() if value is not values[name]}
        return replace(item, **different) if different else item
    return item


def leaves(item: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of all leaves of nested containers; a name is like ['boxes'][0]."""
    if isinstance(item, (dict, list, tuple)) and item:
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            yield from leaves(value, f"{name}[{key!r}]")
    else:
        yield name, item
