"""From a slot as the loader yields it to what model and loss take, on the model's device.

Bytes travel: they are copied to a GPU beside what it computes, on a stream of its own, and float32 is made there at the
end. A step only queues work, so the host asks for the next slot while the GPU computes this one: its copy runs at once,
and the computation that comes after waits for it by an event, not the host. Without a GPU nothing is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch.nn import functional

from contracts.errors import ConfigError
from trainer.data.clock import DataClock
from trainer.data.loader import SlotBatch
from trainer.tasks.image_classification.augment.pixel_ops import apply_plan, mix_images
from trainer.tasks.image_classification.transforms import TrainTransform, normalise

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


@dataclass(frozen=True)
class ModelInput:
    """A slot as the model takes it."""

    images: torch.Tensor
    """[B, 3, S, S] float32, normalised."""
    labels: torch.Tensor
    """[B] int64."""
    shares: torch.Tensor | None = None
    """[B] float32 share of a label in the loss; the rest is that of the label in reverse order. None: not mixed."""

    def loss_sum(self, logits: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
        """Return the cross-entropy in nats of logits [B, classes], summed over the slot.

        Args:
            logits: Of the images; taken as float32.
            smoothing: Share of the target that is spread evenly over all classes (Szegedy et al., arXiv 1512.00567).
        """
        logits = logits.float()
        if self.shares is None:
            return functional.cross_entropy(logits, self.labels, reduction="sum", label_smoothing=smoothing)
        own = functional.cross_entropy(logits, self.labels, reduction="none", label_smoothing=smoothing)
        partner = functional.cross_entropy(logits, self.labels.flip(0), reduction="none", label_smoothing=smoothing)
        return (self.shares * own + (1 - self.shares) * partner).sum()


def prepare(
    slot: SlotBatch,
    transform: TrainTransform,
    device: torch.device,
    clock: DataClock | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> ModelInput:
    """Copy a slot to the device, and finish there what the loader left: augmentation, normalisation, mixing.

    Args:
        slot: From the loader; pinned where the device is a GPU.
        transform: That of the loader.
        device: Where the model is.
        clock: Measures the copy.
        memory_format: Of the images that the model takes.
    """
    # Where a prefetcher has copied the slot already, only what is drawn for mixing is left.
    with clock.copying() if clock and slot.images.device != device else nullcontext():
        images = slot.images.to(device, non_blocking=True)
        labels = slot.labels.to(device, non_blocking=True)
        shares = None if slot.mix is None else torch.from_numpy(slot.mix.shares).to(device, non_blocking=True)
    if slot.plan is not None:
        images = apply_plan(images.permute(0, 3, 1, 2), slot.plan).permute(0, 2, 3, 1)
    pixels = normalise(images, transform.evaluation.mean, transform.evaluation.std, memory_format)
    if slot.mix is not None:
        pixels = mix_images(pixels, slot.mix)
    return ModelInput(pixels, labels, shares)


def check_device(transform: TrainTransform, device: torch.device) -> None:
    """Refuse augmentation on a GPU that is not there.

    Raises:
        ConfigError: data.augment_device is gpu, and the model is on the CPU.
    """
    if transform.augmentation.on_gpu and device.type != "cuda":
        raise ConfigError(
            "data.augment_device is gpu, but there is no GPU here",
            allowed="data.augment_device=cpu on a machine without a GPU",
            todo="set data.augment_device=cpu, or train on a machine with a GPU",
        )
