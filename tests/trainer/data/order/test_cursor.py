"""Every sample once an epoch, wherever training starts and whoever computes."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.order.test_block_order import orders
from trainer.data.cursor import SlotRequest, rank_slots, slot_requests, step_of, steps_per_epoch
from trainer.data.order import BlockOrder, FullOrder, Order

SIZES = st.integers(1, 120)


def all_requests(
    position: int,
    *,
    batch: int,
    slot: int,
    ranks: int,
    num_samples: int = 0,
    order: Order | None = None,
    epochs: int = 2,
    lockstep: bool = False,
) -> list[SlotRequest]:
    return [
        request
        for rank in range(ranks)
        for request in slot_requests(
            position,
            order=order or FullOrder(num_samples, seed=7),
            epochs=epochs,
            global_batch_size=batch,
            slot_size=slot,
            rank=rank,
            ranks=ranks,
            lockstep=lockstep,
        )
    ]


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_all_ranks_together_see_every_sample_once_an_epoch(num_samples: int, batch: int, slot: int, ranks: int) -> None:
    requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    seen = Counter((r.epoch, sample) for r in requests if r.counts for sample in r.samples)
    assert seen == Counter({(epoch, sample): 1 for epoch in range(2) for sample in range(num_samples)})


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_every_rank_ends_every_step_once(num_samples: int, batch: int, slot: int, ranks: int) -> None:
    steps = 2 * steps_per_epoch(num_samples, batch)
    requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    assert Counter(r.step for r in requests if r.last_of_step) == Counter(dict.fromkeys(range(steps), ranks))
    assert all(r.samples for r in requests)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.data())
def test_a_start_in_the_middle_is_the_rest_of_the_whole(
    num_samples: int, batch: int, slot: int, ranks: int, data: st.DataObject
) -> None:
    whole = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    step = data.draw(st.integers(0, 2 * steps_per_epoch(num_samples, batch)))
    epoch, in_epoch = divmod(step, steps_per_epoch(num_samples, batch))
    position = epoch * num_samples + min(in_epoch * batch, num_samples)
    assert step_of(position, num_samples=num_samples, global_batch_size=batch) == step
    rest = all_requests(position, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    assert rest == [request for request in whole if request.step >= step]


@settings(deadline=None)
@given(SIZES, st.integers(1, 20), st.integers(1, 20))
def test_the_world_size_moves_no_sample(num_samples: int, batch: int, slot: int) -> None:
    def by_place(ranks: int) -> dict[tuple[int, int], tuple[int, ...]]:
        requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
        return {(r.step, r.slot): r.samples for r in requests if r.counts}

    assert by_place(1) == by_place(2) == by_place(3)


def test_slots_are_shared_out_whole() -> None:
    assert [list(rank_slots(5, rank=rank, ranks=3)) for rank in range(3)] == [[0], [1, 2], [3, 4]]
    assert not rank_slots(1, rank=0, ranks=2)


def test_a_position_between_two_steps_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        step_of(3, num_samples=10, global_batch_size=4)


@settings(deadline=None)
@given(orders(), st.integers(1, 40), st.integers(1, 10), st.data())
def test_blocks_in_any_world(order: BlockOrder, batch: int, slot: int, data: st.DataObject) -> None:
    """2 -> 3 -> 1 ranks, changed at steps that are drawn: the same samples in the same slots as with one rank."""
    whole = all_requests(0, order=order, batch=batch, slot=slot, ranks=1)
    seen = Counter((r.epoch, sample) for r in whole for sample in r.samples)
    assert seen == Counter({(epoch, place): 1 for epoch in range(2) for place in range(order.num_samples)})
    steps = steps_per_epoch(order.num_samples, batch)
    first, second = sorted(data.draw(st.tuples(st.integers(0, 2 * steps), st.integers(0, 2 * steps))))
    together = {}
    for ranks, start, stop in ((2, 0, first), (3, first, second), (1, second, 2 * steps)):
        epoch, in_epoch = divmod(start, steps)
        position = epoch * order.num_samples + min(in_epoch * batch, order.num_samples)
        fresh = BlockOrder(order.shards, order.firsts, order.samples, order.window_shards, order.seed)
        for request in all_requests(position, order=fresh, batch=batch, slot=slot, ranks=ranks):
            if request.counts and request.step < stop:
                assert together.setdefault((request.step, request.slot), request.samples) is request.samples
    assert together == {(r.step, r.slot): r.samples for r in whole}


def test_a_rank_without_a_slot_computes_one_that_does_not_count() -> None:
    requests = all_requests(0, num_samples=5, batch=4, slot=2, ranks=2, epochs=1)
    last = [request for request in requests if request.step == 1]
    assert [(request.slot, request.counts, request.last_of_step) for request in last] == [
        (0, False, True),
        (0, True, True),
    ]


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_in_lockstep_all_ranks_compute_equally_many_slots(num_samples: int, batch: int, slot: int, ranks: int) -> None:
    whole = {"num_samples": num_samples, "batch": batch, "slot": slot}
    requests = all_requests(0, **whole, ranks=ranks, lockstep=True)
    passes = Counter(request.step for request in requests)
    slots_of = Counter(request.step for request in all_requests(0, **whole, ranks=1))
    assert passes == {step: ranks * -(-slots // ranks) for step, slots in slots_of.items()}
    assert [r for r in requests if r.counts] == [
        replace(r, last_of_step=other.last_of_step)
        for r, other in zip(
            (r for r in all_requests(0, **whole, ranks=ranks) if r.counts),
            (r for r in requests if r.counts),
            strict=True,
        )
    ]
    assert Counter(r.step for r in requests if r.last_of_step) == dict.fromkeys(passes, ranks)
