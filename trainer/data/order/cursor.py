"""Where every sample goes: pure functions of (seed, epoch, global position).

The global position counts samples since the start of training. It is the whole data state: a resume needs this one
integer, and nothing here depends on ranks, workers or attempts, except who computes what.

    position ──> epoch, offset ──> batch (never crosses an epoch) ──> slots of a fixed size ──> ranks

Which samples stand at an offset is trainer/data/order/resolve.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """Return the slots that a rank processes: a run of whole slots, its length may differ between ranks by one."""
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
