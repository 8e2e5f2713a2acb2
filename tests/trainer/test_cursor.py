"""Every sample once an epoch, wherever training starts and whoever computes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.cursor import SlotRequest, mix, permutation, rank_slots, slot_requests, step_of, steps_per_epoch

SIZES = st.integers(1, 120)


def all_requests(
    position: int, *, num_samples: int, batch: int, slot: int, ranks: int, epochs: int = 2
) -> list[SlotRequest]:
    return [
        request
        for rank in range(ranks)
        for request in slot_requests(
            position,
            num_samples=num_samples,
            epochs=epochs,
            global_batch_size=batch,
            slot_size=slot,
            seed=7,
            rank=rank,
            ranks=ranks,
        )
    ]


@given(SIZES, st.integers(0, 2**40), st.integers(0, 5))
def test_an_epoch_is_a_permutation(num_samples: int, seed: int, epoch: int) -> None:
    order = permutation(num_samples, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(num_samples))


def test_seeds_and_epochs_give_other_orders_and_the_same_one_again() -> None:
    orders = {tuple(permutation(50, seed=s, epoch=e).tolist()) for s in range(5) for e in range(5)}
    assert len(orders) == 25
    assert permutation(50, seed=1, epoch=1).tolist() == permutation(50, seed=1, epoch=1).tolist()


def test_the_order_is_uniform() -> None:
    """Chi-square of (place, sample) over many epochs, 8 samples: 49 degrees of freedom, 99.9 % quantile 85.4."""
    rounds = 4000
    counts = Counter(
        (place, int(sample))
        for epoch in range(rounds)
        for place, sample in enumerate(permutation(8, seed=3, epoch=epoch))
    )
    expected = rounds / 8
    chi_square = sum((counts[place, sample] - expected) ** 2 / expected for place in range(8) for sample in range(8))
    assert chi_square < 85.4


@settings(max_examples=200)
@given(SIZES, st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_all_ranks_together_see_every_sample_once_an_epoch(num_samples: int, batch: int, slot: int, ranks: int) -> None:
    requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    seen = Counter((r.epoch, sample) for r in requests if r.counts for sample in r.samples)
    assert seen == Counter({(epoch, sample): 1 for epoch in range(2) for sample in range(num_samples)})


@settings(max_examples=200)
@given(SIZES, st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_every_rank_ends_every_step_once(num_samples: int, batch: int, slot: int, ranks: int) -> None:
    steps = 2 * steps_per_epoch(num_samples, batch)
    requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
    assert Counter(r.step for r in requests if r.last_of_step) == Counter(dict.fromkeys(range(steps), ranks))
    assert all(r.samples for r in requests)


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


@given(SIZES, st.integers(1, 20), st.integers(1, 20))
def test_the_world_size_moves_no_sample(num_samples: int, batch: int, slot: int) -> None:
    def by_place(ranks: int) -> dict[tuple[int, int], tuple[int, ...]]:
        requests = all_requests(0, num_samples=num_samples, batch=batch, slot=slot, ranks=ranks)
        return {(r.step, r.slot): r.samples for r in requests if r.counts}

    assert by_place(1) == by_place(2) == by_place(3)


def test_slots_are_shared_out_whole() -> None:
    assert [rank_slots(5, rank=rank, ranks=3) for rank in range(3)] == [[0, 3], [1, 4], [2]]
    assert rank_slots(1, rank=1, ranks=2) == []


def test_a_position_between_two_steps_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        step_of(3, num_samples=10, global_batch_size=4)


def test_the_hash_is_fixed() -> None:
    """A change of this value would reorder every training: it must be wanted."""
    assert mix(1, 2, 3) == 0x48CF5028B6DF10DB
    assert mix(1, 2) != mix(2, 1)
    assert 0 <= mix(-1, 2**70) < 2**64
