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
from trainer.cut import PREFETCH_FACTOR, Cut
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.prefetch import Prefetcher
from trainer.data.prepare import check_device, prepare
from trainer.data.transforms import TrainTransform
from trainer.ema import MovingAverage
from trainer.optim import clip_divisor, gradient_norm, make_optimizer, step_optimizer
from trainer.order import Order
from trainer.precision import Numerics

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
    numerics: Numerics,
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
        numerics: What steps compute in.
        model: The network, on `device`; its weights change.
        dataset: The training split.
        order: That of training.
        slot_size: Samples per forward pass.
        num_workers: Loader processes.
        ranks: Training processes that share the global batch.
        device: Where the model is.
    """
    check_device(dataset.transform, device)
    steps = _Steps(config, numerics, model, dataset.transform, device)
    # As the training does: gradients add up over the slots of a rank, then the optimizer steps.
    slots_per_step = Cut(slot_size, num_workers, "").slots_per_rank(config.train.global_batch_size, ranks)
    model.train()
    batch = min(slot_size, order.num_samples)
    dataset.reader.follow(order, global_batch_size=batch, readers=max(1, num_workers))
    prefetch_factor = PREFETCH_FACTOR if config.data.prefetch_factor == "auto" else config.data.prefetch_factor
    ahead = dataset.reader.prefetcher(0, epochs=sys.maxsize, ranks=1, requests=_endless_requests(order, slot_size))
    loader = make_loader(
        dataset,
        ahead.following(_endless_requests(order, slot_size)),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=device.type == "cuda",
    )
    slots = _passing(read_slots(loader), ahead)
    try:
        # Prefetched slots make the first window look fast: with loader processes they are drained first.
        for _ in range(WARMUP_STEPS + num_workers * prefetch_factor):
            steps.compute(next(slots), take_step=True)
        windows = [_measure_window(config, steps, slots, device, slots_per_step) for _ in range(WINDOWS)]
    finally:
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
    steps: _Steps,
    slots: Iterator[SlotBatch],
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
        steps.compute(slot, take_step=number % slots_per_step == 0)
        samples += len(slot.labels)
        if time.perf_counter() - start >= config.profile.window_s:
            break
    _synchronise(device)
    return Window(samples, time.perf_counter() - start, data_s)


class _Steps:
    """Steps as training takes them, of one rank alone; what is not finite is not looked for."""

    def __init__(
        self,
        config: RunConfig,
        numerics: Numerics,
        model: nn.Module,
        transform: TrainTransform,
        device: torch.device,
    ) -> None:
        self._train, self._numerics, self._model = config.train, numerics, model
        self._transform, self._device = transform, device
        self._forward = torch.compile(model, dynamic=False) if numerics.compile else model
        self._optimizer = make_optimizer(model, config.train)
        self._average = MovingAverage(model, config.train.ema_decay) if config.train.ema_decay else None
        self._taken = torch.zeros((), device=device)

    def compute(self, slot: SlotBatch, *, take_step: bool) -> None:
        """Run a slot forward and backward, and take the optimizer step."""
        given = prepare(slot, self._transform, self._device)
        with self._numerics.autocast(self._device):
            logits = self._forward(self._numerics.lay_out_images(given.images))
        loss = given.loss_sum(logits, smoothing=self._train.label_smoothing) / len(slot.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if not take_step:
            return
        norm = gradient_norm(self._model.parameters())
        most = self._train.clip_grad_norm
        divisor = None if most is None else clip_divisor(norm, most)
        step_optimizer(self._optimizer, found_inf=self._taken, divisor=divisor)
        self._optimizer.zero_grad(set_to_none=True)
        if self._average is not None:
            self._average.update(0, self._taken)


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
