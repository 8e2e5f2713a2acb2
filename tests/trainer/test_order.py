"""Which order it is, that it stays, and that balanced sampling is exact."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError
from tests.trainer.test_blocks import manifest
from trainer.blocks import BlockOrder
from trainer.order import BalancedOrder, FullOrder, make_order, resolve_order
from trainer.permutation import SORTED_BELOW
from trainer.shards import load_labels

BUCKET, DISK = "gs://bucket-1/shards", "file:///data/shards"
SHARDS = manifest([100, 60])


def checkpoint(order: SampleOrder | None, position: int = 0) -> CheckpointManifest:
    return CheckpointManifest(
        fingerprint="f",
        step=1,
        position=position,
        epoch=0,
        slot_size=4,
        order=order,
        model={},
        classes=["a"],
        data={},
        shards_fingerprint="s",
        metrics={},
        best_step=0,
        parameters_sha256="",
        environment={},
        files=[],
    )


def test_local_files_are_permuted_in_full_and_a_bucket_in_blocks() -> None:
    local = resolve_order(DataSection(), DISK, SHARDS, None)
    assert (local.order, local.reason) == (SampleOrder(kind="full"), "order full: the shards are local files")
    bucket = resolve_order(DataSection(block_bytes=1024), BUCKET, SHARDS, None)
    # Samples of 10 bytes.
    assert bucket.order == SampleOrder(kind="blocks", streams=48, range_bytes=16 << 20, block_samples=102)
    assert "blocks of 102 samples): the shards are in a bucket" in bucket.reason


def test_what_is_set_wins_over_the_location() -> None:
    assert resolve_order(DataSection(order="full"), BUCKET, SHARDS, None).order.kind == "full"
    assert resolve_order(DataSection(order="blocks"), DISK, SHARDS, None).order.kind == "blocks"


@pytest.mark.parametrize(("began", "goes_on"), [(BUCKET, DISK), (DISK, BUCKET)])
def test_shards_that_move_keep_the_order_that_training_began_with(began: str, goes_on: str) -> None:
    before = resolve_order(DataSection(), began, SHARDS, None).order
    # Through the bytes of a manifest, as between two attempts.
    recorded = CheckpointManifest.parse(checkpoint(before, 32).to_json(), where="test")
    after = resolve_order(DataSection(), goes_on, SHARDS, recorded)
    assert after.order == before
    assert "recorded in the checkpoint; a new training would take" in after.reason
    places = [make_order(order, began, SHARDS, seed=3).places(1, 32, 64).tolist() for order in (before, after.order)]
    assert places[0] == places[1]
    assert "new training" not in resolve_order(DataSection(), began, SHARDS, recorded).reason


def test_checkpoints_without_an_order_go_on_in_full() -> None:
    assert resolve_order(DataSection(), BUCKET, SHARDS, checkpoint(None, 32)).order == SampleOrder(kind="full")


def test_checkpoints_whose_order_is_no_longer_known_are_refused_within_an_epoch() -> None:
    many = manifest([SORTED_BELOW])
    assert resolve_order(DataSection(), DISK, many, checkpoint(None, SORTED_BELOW)).order.kind == "full"
    with pytest.raises(DataError, match="lies within an epoch"):
        resolve_order(DataSection(), DISK, many, checkpoint(None, 32))


def test_balanced_is_full_wherever_the_shards_are() -> None:
    data = DataSection(sampling="balanced")
    assert resolve_order(data, BUCKET, SHARDS, None).order == SampleOrder(kind="full", sampling="balanced")
    with pytest.raises(ValueError, match="balanced needs order=full"):
        DataSection(sampling="balanced", order="blocks")


def test_the_kinds_of_order(small_shards: str) -> None:
    shards = ShardManifest.load(small_shards)
    samples = shards.splits["train"].samples
    full = make_order(SampleOrder(kind="full"), small_shards, shards, seed=3)
    balanced = make_order(SampleOrder(kind="full", sampling="balanced"), small_shards, shards, seed=3)
    record = SampleOrder(kind="blocks", streams=3, range_bytes=2000, block_samples=10)
    blocks = make_order(record, small_shards, shards, seed=3)
    assert (type(full), type(balanced), type(blocks)) == (FullOrder, BalancedOrder, BlockOrder)
    assert full.num_samples == balanced.num_samples == blocks.num_samples == samples
    for order in (full, blocks):
        assert sorted(order.places(2, 0, samples).tolist()) == list(range(samples))
    assert full.streams(0, 4) is None
    assert list(full.needed(0, 0, 4)) == []
    assert list(blocks.needed(0, 0, 4))
    labels = load_labels(small_shards, shards, "train")
    assert np.bincount(labels).tolist() == shards.splits["train"].samples_by_class
    drawn = Counter(labels[balanced.places(0, 0, samples)].tolist())
    assert max(drawn.values()) - min(drawn.values()) <= 1


def test_labels_are_read_in_parts(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardManifest.load(small_shards)
    whole = load_labels(small_shards, shards, "train").tolist()
    monkeypatch.setattr("trainer.shards.LABELS_AT_A_TIME", 7)
    assert load_labels(small_shards, shards, "train").tolist() == whole


@pytest.mark.parametrize("num_samples", [1, 120, SORTED_BELOW + 5])
def test_a_full_epoch_in_parts(num_samples: int) -> None:
    whole = FullOrder(num_samples, seed=2).places(1, 0, num_samples)
    assert (np.bincount(whole, minlength=num_samples) == 1).all()
    order = FullOrder(num_samples, seed=2)
    parts = [order.places(1, s, min(999, num_samples - s)) for s in range(0, num_samples, 999)]
    assert (np.concatenate(parts) == whole).all()


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


def test_balanced_with_a_class_of_many_samples() -> None:
    labels = np.zeros(SORTED_BELOW + 10, dtype=np.int32)
    labels[:3] = 1
    order = BalancedOrder.of(labels, 1)
    places = order.places(0, 0, len(labels))
    assert (labels[places] == 1).sum() == len(labels) // 2
    common = places[labels[places] == 0]
    assert len(set(common.tolist())) == len(common)


def test_the_empty_and_the_small_split_are_refused(tmp_path: Path) -> None:
    from contracts import storage
    from trainer.shards import load_shards

    def load(shards: ShardManifest, ranks: int) -> Any:
        (tmp_path / "manifest.json").write_bytes(shards.to_json())
        return load_shards(storage.normalise(tmp_path), DataSection(mean=[0.5] * 3, std=[0.5] * 3), ranks=ranks)

    with pytest.raises(DataError, match="is empty"):
        load(manifest([]), 1)
    with pytest.raises(DataError, match="3 samples for 4 ranks"):
        load(manifest([3]), 4)
    assert load(manifest([3]), 3).splits["train"].samples == 3
