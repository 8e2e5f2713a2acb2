"""Where every sample goes: pure functions of (seed, epoch, global position).

The global position counts samples since the start of training. It is the whole data state: a resume needs this one
integer, and nothing here depends on ranks, workers or attempts, except who computes what.

    position ──> epoch, offset ──> batch (never crosses an epoch) ──> slots of a fixed size ──> ranks

Which samples stand at an offset is trainer/data/order/resolve.py's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.order.block_order import BlockOrder
from trainer.data.order.permutation import hash_integers as hash_integers
from trainer.data.order.resolve import Order


@dataclass(frozen=True)
class SlotRequest:
    """One forward pass of one rank."""

    step: int
    """Optimizer step, from 0."""
    epoch: int
    slot: int
    """Place of the slot in the global batch, from 0."""
    samples: tuple[int, ...]
    """Places of the samples in the split."""
    batch_samples: int
    """Samples in the whole global batch: what the loss is divided by."""
    counts: bool
    """False where the rank only joins the collectives, with weight 0: it has no slot in a short last batch, or fewer
    than others in lockstep."""
    last_of_step: bool
    """Whether this rank takes the optimizer step after this slot."""


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of an epoch; the last batch may be smaller."""
    return -(-num_samples // global_batch_size)


def step_of(position: int, *, num_samples: int, global_batch_size: int) -> int:
    """Return the number of optimizer steps taken when `position` samples were seen."""
    epoch, offset = divmod(position, num_samples)
    assert offset % global_batch_size == 0, "a position between two steps"
    return epoch * steps_per_epoch(num_samples, global_batch_size) + offset // global_batch_size


def rank_slots(num_slots: int, *, rank: int, ranks: int) -> range:
    """Return the slots that a rank processes: a run of whole slots, its length may differ between ranks by one.

    A run, not every n-th one: samples are sorted by stream, so the slots of a rank are of few streams.
    """
    return range(rank * num_slots // ranks, (rank + 1) * num_slots // ranks)


def slot_requests(
    position: int,
    *,
    order: Order,
    epochs: int,
    global_batch_size: int,
    slot_size: int,
    rank: int,
    ranks: int,
    lockstep: bool = False,
) -> Iterator[SlotRequest]:
    """Yield what a rank computes, in order, from a global position to the end of training.

    In lockstep all ranks compute equally many slots of a step: forward passes talk to each other.
    """
    num_samples = order.num_samples
    step = step_of(position, num_samples=num_samples, global_batch_size=global_batch_size)
    first_epoch, offset = divmod(position, num_samples)
    for epoch in range(first_epoch, epochs):
        for start in range(offset, num_samples, global_batch_size):
            count = min(global_batch_size, num_samples - start)
            batch = order.places(epoch, start, count)
            if isinstance(order, BlockOrder):
                batch = batch[np.argsort(order.streams(start, count), kind="stable")]
            num_slots = -(-count // slot_size)
            # A rank without a slot computes its neighbour's with weight 0: collectives need every rank.
            mine = rank_slots(num_slots, rank=rank, ranks=ranks)
            taken = list(mine) or [rank * num_slots // ranks]
            if lockstep:
                taken += taken[-1:] * (-(-num_slots // ranks) - len(taken))
            for number, slot in enumerate(taken):
                yield SlotRequest(
                    step=step,
                    epoch=epoch,
                    slot=slot,
                    samples=tuple(batch[slot * slot_size : (slot + 1) * slot_size].tolist()),
                    batch_samples=count,
                    counts=number < len(mine),
                    last_of_step=number == len(taken) - 1,
                )
            step += 1
        offset = 0


def stream_readers(order: Order, *, global_batch_size: int, slot_size: int, ranks: int) -> npt.NDArray[np.bool_] | None:
    """Return which rank reads which stream: [ranks, num_streams]; None for an order without streams.

    Of full batches: in the short batch at the end of an epoch a rank may read a few samples of any stream.
    """
    if not isinstance(order, BlockOrder):
        return None
    num_streams = order.num_streams
    batch = min(global_batch_size, order.num_samples)
    slots = -(-batch // slot_size)
    taken = [(rank, rank_slots(slots, rank=rank, ranks=ranks)) for rank in range(ranks)]
    rows = np.array([rank for rank, mine in taken if mine])
    firsts = np.array([mine.start * slot_size for _, mine in taken if mine])
    ends = np.array([min(mine.stop * slot_size, batch) for _, mine in taken if mine])
    # Batch number k starts at offset k * batch: after so many batches the streams repeat.
    period = num_streams // math.gcd(batch, num_streams)
    start = (np.arange(min(period, order.num_samples // batch)) * batch % num_streams)[:, None]
    # A batch has so many samples of each stream, and one more of those from its start on, over the last stream's edge.
    rounds, longer = divmod(batch, num_streams)
    over = np.maximum(start + longer - num_streams, 0)
    first, second = np.where(over, over, start), np.where(over, start, start + longer)
    outer, inner = rounds + (over > 0), rounds + (over == 0)
    none, all_streams = np.zeros_like(start), np.full_like(start, num_streams)
    # Where a rank's streams begin (+1) and end (-1) in each of the three runs of streams with equally many samples.
    changes = np.zeros((ranks, num_streams + 1), dtype=np.int64)
    before = none
    for left, right, of_stream in ((none, first, outer), (first, second, inner), (second, all_streams, outer)):
        each = np.maximum(of_stream, 1)
        begins = left + np.maximum(firsts - before, 0) // each
        stops = np.minimum(left - np.minimum(before - ends, 0) // each, right)
        some = (begins < stops) & (of_stream > 0)
        row = np.broadcast_to(rows, some.shape)[some]
        np.add.at(changes, (row, begins[some]), 1)
        np.add.at(changes, (row, stops[some]), -1)
        before = before + (right - left) * of_stream
    return np.asarray(changes.cumsum(axis=1)[:, :-1] > 0)


def describe_sharing(readers: npt.NDArray[np.bool_]) -> str | None:
    """Say how much more leaves the bucket because ranks share streams; None where they share none."""
    ranks, num_streams = readers.shape
    readers_of_stream = readers.sum(axis=0)
    shared = int((readers_of_stream > 1).sum())
    if not shared:
        return None
    factor = float(readers_of_stream.sum()) / max(1, int((readers_of_stream > 0).sum()))
    return (
        f"extra egress: {shared} of {num_streams} streams are read by more than one of {ranks} ranks, so up to "
        f"{factor:.2f} times the bytes of an epoch leave the bucket where each rank has a machine of its own; none if "
        "the ranks divide data.canonical_streams, the streams train.global_batch_size, and the ranks its slots"
    )
