"""Which order it is, and that it stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import DataSection, RunConfig, TrainSection
from contracts.errors import DataError
from tests.trainer.data.order.test_block_order import manifest
from trainer.data.order import BlockOrder, FullOrder, make_order, resolve_order
from trainer.data.randomness import SORTED_BELOW

BUCKET, DISK = "gs://bucket-1/shards", "file:///data/shards"
SHARDS = manifest([100, 60])


def checkpoint(order: SampleOrder, position: int = 0) -> CheckpointManifest:
    return CheckpointManifest(
        fingerprint="f",
        step=1,
        position=position,
        epoch=0,
        slot_size=4,
        order=order,
        model={},
        task={},
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
    local = resolve_order(DataSection(), DISK, None)
    assert (local.order, local.reason) == (SampleOrder(kind="full"), "order full: the shards are local files")
    bucket = resolve_order(DataSection(cache_bytes=1024), BUCKET, None)
    assert bucket.order == SampleOrder(kind="blocks", window_shards=16)
    assert "blocks (windows of 16 shards): the shards are in a bucket" in bucket.reason


def test_what_is_set_wins_over_the_location() -> None:
    assert resolve_order(DataSection(order="full"), BUCKET, None).order.kind == "full"
    assert resolve_order(DataSection(order="blocks"), DISK, None).order.kind == "blocks"


@pytest.mark.parametrize(("began", "goes_on"), [(BUCKET, DISK), (DISK, BUCKET)])
def test_shards_that_move_keep_the_order_that_training_began_with(began: str, goes_on: str) -> None:
    before = resolve_order(DataSection(), began, None).order
    # Through the bytes of a manifest, as between two attempts.
    recorded = CheckpointManifest.parse(checkpoint(before, 32).to_json(), where="test")
    after = resolve_order(DataSection(), goes_on, recorded)
    assert after.order == before
    assert "recorded in the checkpoint; a new training would take" in after.reason
    places = [make_order(order, SHARDS, seed=3).places(1, 32, 64).tolist() for order in (before, after.order)]
    assert places[0] == places[1]
    assert "new training" not in resolve_order(DataSection(), began, recorded).reason


def test_the_kinds_of_order(small_shards: str) -> None:
    shards = ShardManifest.load(small_shards)
    samples = shards.splits["train"].samples
    full = make_order(SampleOrder(kind="full"), shards, seed=3)
    record = SampleOrder(kind="blocks", window_shards=3)
    blocks = make_order(record, shards, seed=3)
    assert (type(full), type(blocks)) == (FullOrder, BlockOrder)
    assert full.num_samples == blocks.num_samples == samples
    for order in (full, blocks):
        assert sorted(order.places(2, 0, samples).tolist()) == list(range(samples))


@pytest.mark.parametrize("num_samples", [1, 120, SORTED_BELOW + 5])
def test_a_full_epoch_in_parts(num_samples: int) -> None:
    whole = FullOrder(num_samples, seed=2).places(1, 0, num_samples)
    assert (np.bincount(whole, minlength=num_samples) == 1).all()
    order = FullOrder(num_samples, seed=2)
    parts = [order.places(1, s, min(999, num_samples - s)) for s in range(0, num_samples, 999)]
    assert (np.concatenate(parts) == whole).all()


def test_the_empty_and_the_small_split_are_refused(tmp_path: Path) -> None:
    from contracts import storage
    from trainer.tasks.shard_checks import load_shards

    def load(shards: ShardManifest, ranks: int) -> Any:
        shards = shards.model_copy(update={"classes": ["a", "b"]})
        (tmp_path / "manifest.json").write_bytes(shards.to_json())
        config = RunConfig(data=DataSection(mean=[0.5] * 3, std=[0.5] * 3), train=TrainSection(global_batch_size=3))
        return load_shards(storage.normalise(tmp_path), config, ranks=ranks)

    with pytest.raises(DataError, match="is empty"):
        load(manifest([]), 1)
    with pytest.raises(DataError, match="3 samples for 4 ranks"):
        load(manifest([3]), 4)
    assert load(manifest([3]), 3).splits["train"].samples == 3
