"""Class-balanced sampling: every class equally often, exact at any position, and each draw a draw of its own."""

import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.artifacts import ShardManifest
from records.samples import open_samples
from trainer.data.order.balanced import BalancedOrder, load_labels
from trainer.data.order.cursor import slot_requests
from trainer.data.order.permutation import SORTED_BELOW

# Labels 0 to 6, of which some have no sample.
LABELS = st.lists(st.sampled_from([0, 1, 2, 4, 6]), min_size=1, max_size=60)


@given(LABELS, st.integers(0, 2**62))
def test_each_class_comes_equally_often(labels: list[int], seed: int) -> None:
    order = BalancedOrder.of(np.array(labels, dtype=np.int32), seed)
    classes, num = sorted(set(labels)), len(labels)
    drawn = [place for epoch in range(4) for place in order.places(epoch, 0, num).tolist()]
    for start in range(0, 4 * num - len(classes) + 1, len(classes)):
        assert sorted(labels[place] for place in drawn[start : start + len(classes)]) == classes
    # The draws of a class go through all its samples before one comes again.
    for label in classes:
        own = [place for place, of in enumerate(labels) if of == label]
        draws = [place for place in drawn if labels[place] == label]
        for start in range(0, len(draws) - len(own) + 1, len(own)):
            assert sorted(draws[start : start + len(own)]) == own


@given(LABELS, st.integers(0, 3), st.data())
def test_balanced_goes_on_at_any_position(labels: list[int], epoch: int, data: st.DataObject) -> None:
    array = np.array(labels, dtype=np.int32)
    whole = BalancedOrder.of(array, 5).places(epoch, 0, len(labels)).tolist()
    first = data.draw(st.integers(0, len(labels)))
    assert BalancedOrder.of(array, 5).places(epoch, first, len(labels) - first).tolist() == whole[first:]


def test_a_class_of_many_samples() -> None:
    labels = np.zeros(SORTED_BELOW + 10, dtype=np.int32)
    labels[:3] = 1
    order = BalancedOrder.of(labels, 1)
    places = order.places(0, 0, len(labels))
    assert (labels[places] == 1).sum() == len(labels) // 2
    common = places[labels[places] == 0]
    assert len(set(common.tolist())) == len(common)


@settings(deadline=None)
@given(LABELS, st.integers(0, 2**62), st.data())
def test_parts_in_any_order_are_those_of_the_whole(labels: list[int], seed: int, data: st.DataObject) -> None:
    """What is kept of the classes' cycles never shows: parts drawn here and there, by one order."""
    array, num = np.array(labels, dtype=np.int32), len(labels)
    whole = [BalancedOrder.of(array, seed).places(epoch, 0, num).tolist() for epoch in range(3)]
    order = BalancedOrder.of(array, seed)
    for _ in range(8):
        epoch, first = data.draw(st.integers(0, 2)), data.draw(st.integers(0, num - 1))
        count = data.draw(st.integers(0, num - first))
        assert order.places(epoch, first, count).tolist() == whole[epoch][first : first + count]


@given(LABELS, st.integers(0, 2**62))
def test_draws_of_a_sample_are_counted(labels: list[int], seed: int) -> None:
    order, num = BalancedOrder.of(np.array(labels, dtype=np.int32), seed), len(labels)
    before = Counter[int]()
    for epoch in range(4):
        drawn = order.times_drawn(epoch, 0, num).tolist()
        for place, times in zip(order.places(epoch, 0, num).tolist(), drawn, strict=True):
            assert times == before[place]
            before[place] += 1


def test_the_order_is_that_of_earlier_versions() -> None:
    """A change of these places would reorder trainings that have begun: it must be wanted."""
    labels = np.array([0, 0, 0, 1, 1, 2], dtype=np.int32)
    assert BalancedOrder.of(labels, 3).places(0, 0, 6).tolist() == [5, 4, 0, 5, 3, 1]
    assert BalancedOrder.of(labels, 3).places(1, 0, 6).tolist() == [2, 3, 5, 5, 2, 4]


def test_many_classes_of_many_samples() -> None:
    """Classes whose permutations are networks, each of its own size, beside small ones."""
    sizes = [SORTED_BELOW, SORTED_BELOW + 7, 70_001, 3, 1]
    labels = np.repeat(np.arange(5), sizes).astype(np.int32)
    order = BalancedOrder.of(labels, 4)
    places = order.places(0, 0, len(labels))
    for label, size in enumerate(sizes):
        draws = places[labels[places] == label]
        assert abs(len(draws) - len(labels) // 5) <= 1
        assert len(np.unique(draws[:size])) == min(size, len(draws))
    assert order.places(0, 1234, 50).tolist() == places[1234:1284].tolist()


def test_requests_say_which_draw_it_is() -> None:
    order = BalancedOrder.of(np.array([0, 0, 0, 0, 0, 1], dtype=np.int32), 1)
    requests = [
        request
        for rank in range(2)
        for request in slot_requests(0, order=order, epochs=3, global_batch_size=4, slot_size=2, rank=rank, ranks=2)
        if request.counts
    ]
    draws = Counter((sample, draw) for r in requests for sample, draw in zip(r.samples, r.draws, strict=True))
    assert set(draws.values()) == {1}
    assert sorted(draw for sample, draw in draws if sample == 5) == list(range(9))


def test_labels_are_read_in_parts(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardManifest.load(small_shards)
    index = open_samples(shards, small_shards)
    whole = load_labels(index, shards, "train").tolist()
    monkeypatch.setattr("trainer.data.order.balanced.LABELS_AT_A_TIME", 7)
    assert load_labels(index, shards, "train").tolist() == whole


def test_a_thread_that_asks_while_another_does_gets_its_own_samples() -> None:
    """The loader asks for what comes next, and what fetches ahead of it for later: one order serves both."""
    labels = np.arange(300, dtype=np.int32) % 3
    order = BalancedOrder.of(labels, 4)
    # An epoch is one cycle of each class: the one that is kept.
    expected = order.places(0, 0, 300).tolist()
    begun, answered = threading.Event(), threading.Event()

    class Cycles(np.ndarray):  # type: ignore[type-arg]
        """Lets the other thread ask when the permutations are the next ones already, and the cycles not yet."""

        def __setitem__(self, key: Any, value: Any) -> None:
            begun.set()
            # Where it has to wait for this thread, there is no answer.
            answered.wait(0.3)
            super().__setitem__(key, value)

    order._drawn.cycle = order._drawn.cycle.view(Cycles)
    with ThreadPoolExecutor(1) as threads:
        ahead = threads.submit(order.places, 1, 0, 300)
        assert begun.wait(60)
        found = order.places(0, 0, 300).tolist()
        answered.set()
        ahead.result()
    assert found == expected


def test_what_is_kept_does_not_travel_to_another_process() -> None:
    order = BalancedOrder.of(np.arange(100, dtype=np.int32) % 3, 4)
    expected = order.places(0, 0, 100).tolist()
    assert pickle.loads(pickle.dumps(order)).places(0, 0, 100).tolist() == expected
