"""Where every sample goes: pure functions of (seed, epoch, global position).

The global position counts samples since the start of training. It is the whole data state: a resume needs this one
integer, and nothing here depends on ranks, workers or attempts, except who computes what.

    position ──> epoch, offset ──> batch (never crosses an epoch) ──> slots of a fixed size ──> ranks
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1


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
    """False for a rank without a slot in a short last batch: it joins the collectives with weight 0."""
    last_of_step: bool
    """Whether this rank takes the optimizer step after this slot."""


def mix(*values: int) -> int:
    """Return a 64-bit hash of integers (splitmix64 over the sequence; Steele, Lea and Flood, OOPSLA 2014)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & _MASK)) & _MASK
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permutation(num_samples: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of an epoch: [num_samples] places, each once.

    Sorting by a keyed 64-bit hash is used, not numpy's generator, whose streams may change between versions.
    """
    key = np.uint64(mix(seed, epoch))
    with np.errstate(over="ignore"):
        state = np.arange(num_samples, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    # Stable: equal hashes, however unlikely, keep an order of their own.
    return np.argsort(state, kind="stable").astype(np.int64)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of an epoch; the last batch may be smaller."""
    return -(-num_samples // global_batch_size)


def step_of(position: int, *, num_samples: int, global_batch_size: int) -> int:
    """Return the number of optimizer steps taken when `position` samples were seen."""
    epoch, offset = divmod(position, num_samples)
    assert offset % global_batch_size == 0, "a position between two steps"
    return epoch * steps_per_epoch(num_samples, global_batch_size) + offset // global_batch_size


def rank_slots(num_slots: int, *, rank: int, ranks: int) -> list[int]:
    """Return the slots that a rank processes: whole slots, their number may differ between ranks by one."""
    return list(range(rank, num_slots, ranks))


def slot_requests(
    position: int,
    *,
    num_samples: int,
    epochs: int,
    global_batch_size: int,
    slot_size: int,
    seed: int,
    rank: int,
    ranks: int,
) -> Iterator[SlotRequest]:
    """Yield what a rank computes, in order, from a global position to the end of training."""
    step = step_of(position, num_samples=num_samples, global_batch_size=global_batch_size)
    first_epoch, offset = divmod(position, num_samples)
    for epoch in range(first_epoch, epochs):
        order = permutation(num_samples, seed=seed, epoch=epoch)
        for start in range(offset, num_samples, global_batch_size):
            batch = order[start : start + global_batch_size]
            num_slots = -(-len(batch) // slot_size)
            mine = rank_slots(num_slots, rank=rank, ranks=ranks)
            # A rank without a slot repeats the first one with weight 0: collectives need every rank.
            for slot in mine or [0]:
                samples = batch[slot * slot_size : (slot + 1) * slot_size]
                yield SlotRequest(
                    step=step,
                    epoch=epoch,
                    slot=slot,
                    samples=tuple(int(sample) for sample in samples),
                    batch_samples=len(batch),
                    counts=bool(mine),
                    last_of_step=slot == (mine or [0])[-1],
                )
            step += 1
        offset = 0
