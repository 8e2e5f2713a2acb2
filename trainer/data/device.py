"""Slots copied to the model's device, beside what it computes.

Bytes travel, on a stream of their own; float32 is made there at the end, by the task's `to_model`. A step only queues
work, so the host asks for the next slot while the GPU computes this one: its copy runs at once, and the computation
that comes after waits for it by an event, not the host. Without a GPU nothing is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from trainer.data.clock import DataClock

Item = TypeVar("Item")

# Slots that may lie on the GPU before they are computed. Without a bound the host, which only queues, would fill the
# GPU's memory with copies; with two a copy always runs beside a computation.
MOST_AHEAD = 2


def to_device(items: Iterator[Item], device: torch.device, clock: DataClock) -> Iterator[Item]:
    """Yield items with all their tensors on the device, in order; on a CPU they are passed on as they are.

    Args:
        items: Tensors, or tuples, lists, dicts and dataclasses of them, however deep; pinned, or the copies wait.
        device: Where they are needed.
        clock: Measures the copies.
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
        if all(one is other for one, other in zip(changed, item, strict=True)):
            return item
        # A named tuple takes its fields one by one.
        return type(item)(*changed) if hasattr(item, "_fields") else type(item)(changed)
    if is_dataclass(item) and not isinstance(item, type):
        held = {field.name: getattr(item, field.name) for field in fields(item) if field.init}
        moved = {name: map_tensors(value, change) for name, value in held.items()}
        different = {name: value for name, value in moved.items() if value is not held[name]}
        return replace(item, **different) if different else item
    return item


def find_tensor(item: Any) -> torch.Tensor | None:
    """Return the first tensor in dictionaries, lists and tuples; None: there is none."""
    if isinstance(item, torch.Tensor):
        return item
    inside = item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    return next((found for found in map(find_tensor, inside) if found is not None), None)


def find_other(item: Any, name: str = "") -> str:
    """Return what lies in dictionaries, lists and tuples beside tensors, in words; empty: nothing but tensors.

    Args:
        item: However deep.
        name: Of the place where it was found.
    """
    if isinstance(item, torch.Tensor):
        return ""
    if isinstance(item, (dict, list, tuple)) and item:
        named = item.items() if isinstance(item, dict) else enumerate(item)
        return next((found for key, one in named if (found := find_other(one, f"{name}[{key!r}]"))), "")
    shown = f"an empty {type(item).__name__}" if isinstance(item, (dict, list, tuple)) else f"a {type(item).__name__}"
    return f"{shown} as {name}" if name else shown
