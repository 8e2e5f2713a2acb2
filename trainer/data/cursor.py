"""Assignment of samples to ranks by global position: the number of samples since the start of training.

    position ──> epoch, offset ──> batch (never crosses an epoch) ──> slots of a fixed size ──> ranks

The position is the entire data state: a resume needs this integer only, with any number of ranks and loader processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.data.order import Order


@dataclass(frozen=True)
class SlotRequest:
    """One forward pass of one rank."""

    step: int
    """Optimizer step, from 0."""
    epoch: int
    slot: int
    """Number of the slot in the global batch, from 0."""
    samples: tuple[int, ...]
    """Positions in the split."""
    batch_samples: int
    """Samples of the global batch."""
    counts: bool
    """False if the rank only joins the collectives, with weight 0: it has fewer slots than other ranks."""
    last_of_step: bool
    """Whether an optimizer step follows this slot."""

    @classmethod
    def of(cls, places: Sequence[int], slot: int = 0) -> SlotRequest:
        """Return a request outside of a training step."""
        return cls(0, 0, slot, tuple(places), len(places), counts=True, last_of_step=True)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of an epoch; the last batch may be smaller."""
    return -(-num_samples // global_batch_size)


def step_of(position: int, *, num_samples: int, global_batch_size: int) -> int:
    """Return the number of optimizer steps taken after `position` samples."""
    epoch, offset = divmod(position, num_samples)
    assert offset % global_batch_size == 0, "a position between two steps"
    return epoch * steps_per_epoch(num_samples, global_batch_size) + offset // global_batch_size


def rank_slots(num_slots: int, *, rank: int, ranks: int) -> range:
    """Return the consecutive slots of a rank; their number differs by at most one between ranks."""
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
    """Yield the slots of a rank, in order, from a global position to the end of training.

    In lockstep, all ranks compute the same number of slots per step, since forward passes have collectives.
    """
    num_samples = order.num_samples
    step = step_of(position, num_samples=num_samples, global_batch_size=global_batch_size)
    first_epoch, offset = divmod(position, num_samples)
    for epoch in range(first_epoch, epochs):
        for start in range(offset, num_samples, global_batch_size):
            count = min(global_batch_size, num_samples - start)
            batch = order.places(epoch, start, count)
            num_slots = -(-count // slot_size)
            assigned = rank_slots(num_slots, rank=rank, ranks=ranks)
            # Collectives need every rank: one without a slot computes its neighbour's with weight 0.
            computed = list(assigned) or [rank * num_slots // ranks]
            if lockstep:
                computed += computed[-1:] * (-(-num_slots // ranks) - len(computed))
            for number, slot in enumerate(computed):
                yield SlotRequest(
                    step=step,
                    epoch=epoch,
                    slot=slot,
                    samples=tuple(batch[slot * slot_size : (slot + 1) * slot_size].tolist()),
                    batch_samples=count,
                    counts=number < len(assigned),
                    last_of_step=number == len(computed) - 1,
                )
            step += 1
        offset = 0
