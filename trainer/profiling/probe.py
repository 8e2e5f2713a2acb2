"""Measures one configuration: the real loader, the real model, forward, backward and optimizer, for a few windows."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader

from contracts.artifacts import ProfilePoint
from contracts.config import RunConfig
from contracts.errors import UserError
from trainer.cursor import SlotRequest, slot_requests
from trainer.cut import Cut
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.prefetch import Prefetcher
from trainer.data.prepare import check_device, prepare
from trainer.data.transforms import TrainTransform
from trainer.optim import make_optimizer
from trainer.order import Order

WINDOWS = 3
# Steps before the first window: allocations, lazy initialisation and, with loader processes, their start.
WARMUP_STEPS = 3


@dataclass(frozen=True)
class Window:
    """What one measurement counted."""

    samples: int
    wall_s: float
    data_s: float
    """Part of wall_s in which the loop waited for the loader."""


def measure_point(
    config: RunConfig,
    model: nn.Module,
    dataset: SlotDataset,
    order: Order,
    *,
    slot_size: int,
    num_workers: int,
    ranks: int,
    device: torch.device,
) -> ProfilePoint:
    """Measure samples per second of one rank at a slot size and a number of loader processes.

    Args:
        config: The configuration; profile.window_s is the length of a window in seconds.
        model: The network, on `device`; its weights change.
        dataset: The training split.
        order: That of training.
        slot_size: Samples per forward pass.
        num_workers: Loader processes.
        ranks: Training processes that share the global batch.
        device: Where the model is.
    """
    check_device(dataset.transform, device)
    optimizer = make_optimizer(model, config.train)
    # As the training does: gradients add up over the slots of a rank, then the optimizer steps.
    slots_per_step = Cut(slot_size, num_workers, "").slots_per_rank(config.train.global_batch_size, ranks)
    model.train()
    batch = min(slot_size, order.num_samples)
    dataset.reader.follow(order, global_batch_size=batch, readers=max(1, num_workers))
    ahead = dataset.reader.prefetcher(0, epochs=sys.maxsize, ranks=1, requests=_endless_requests(order, slot_size))
    loader = make_loader(
        dataset,
        ahead.following(_endless_requests(order, slot_size)),
        num_workers=num_workers,
        prefetch_factor=config.data.prefetch_factor,
        pin_memory=device.type == "cuda",
    )
    slots = _passing(read_slots(loader), ahead)
    # Prefetched slots make the first window look fast: with loader processes they are drained first.
    warmup = WARMUP_STEPS + num_workers * config.data.prefetch_factor
    for _ in range(warmup):
        _step(model, optimizer, next(slots), dataset.transform, device, take_step=True)
    windows = [
        _measure_window(config, model, optimizer, slots, dataset.transform, device, slots_per_step)
        for _ in range(WINDOWS)
    ]
    del slots
    _stop_workers(loader)
    ahead.stop()
    rates = sorted(window.samples / window.wall_s for window in windows)
    return ProfilePoint(
        slot_size=slot_size,
        num_workers=num_workers,
        samples_per_s=median(rates),
        samples_per_s_min=rates[0],
        samples_per_s_max=rates[-1],
        data_time_fraction=min(1.0, median(window.data_s / window.wall_s for window in windows)),
    )


def _measure_window(
    config: RunConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    slots: Iterator[SlotBatch],
    transform: TrainTransform,
    device: torch.device,
    slots_per_step: int,
) -> Window:
    samples, data_s = 0, 0.0
    _synchronise(device)
    start = time.perf_counter()
    for number in itertools.count(1):
        asked = time.perf_counter()
        slot = next(slots)
        data_s += time.perf_counter() - asked
        _step(model, optimizer, slot, transform, device, take_step=number % slots_per_step == 0)
        samples += len(slot.labels)
        if time.perf_counter() - start >= config.profile.window_s:
            break
    _synchronise(device)
    return Window(samples, time.perf_counter() - start, data_s)


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    slot: SlotBatch,
    transform: TrainTransform,
    device: torch.device,
    *,
    take_step: bool,
) -> None:
    given = prepare(slot, transform, device)
    loss = given.loss_sum(model(given.images)) / len(slot.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    if take_step:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _endless_requests(order: Order, slot_size: int) -> Iterator[SlotRequest]:
    """Yield full slots over and over; a split smaller than a slot is repeated inside it."""
    for request in slot_requests(
        0,
        order=order,
        epochs=sys.maxsize,
        global_batch_size=min(slot_size, order.num_samples),
        slot_size=slot_size,
        rank=0,
        ranks=1,
    ):
        places = tuple(itertools.islice(itertools.cycle(request.samples), slot_size))
        yield SlotRequest(request.step, request.epoch, 0, places, slot_size, counts=True, last_of_step=True)


def _passing(slots: Iterator[SlotBatch], ahead: Prefetcher) -> Iterator[SlotBatch]:
    for slot in slots:
        yield slot
        ahead.passed(slot.request)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _stop_workers(loader: DataLoader[SlotBatch | UserError]) -> None:
    """End the loader's processes now: two sets of them would disturb the next measurement."""
    iterator = loader._iterator
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
