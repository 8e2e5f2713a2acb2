"""Whether a network takes statistics from its slots, or cannot train on some, and has a memory layout to choose."""

from pathlib import Path

import pytest
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.trainer.one_rank import one_rank
from trainer.model.freeze import find_frozen, freeze
from trainer.profiling.probe import RankProbe
from trainer.profiling.service import Service, has_batch_norm, has_layout


def network(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(norm), nn.Flatten()).train()


def frozen(pattern: str = "1.*") -> nn.Module:
    made = network(nn.BatchNorm2d(4))
    freeze(made, find_frozen(made, [pattern]))
    return made.train()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.BatchNorm2d(4, affine=False)])
def test_batch_norm_that_trains_counts(norm: nn.Module) -> None:
    assert has_batch_norm(network(norm))


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.Identity()])
def test_norms_of_single_samples_do_not(norm: nn.Module) -> None:
    assert not has_batch_norm(network(norm))


def test_frozen_ones_do_not_count() -> None:
    still = network(nn.BatchNorm2d(4)).eval()
    for each in (frozen(), still):
        assert not has_batch_norm(each)
    # Its bias learns: its statistics do too.
    assert has_batch_norm(frozen("*.weight"))
    # One that is frozen and one that is not.
    assert has_batch_norm(nn.Sequential(frozen(), network(nn.BatchNorm1d(4))))


def test_a_layout_is_chosen_for_images_or_for_weights_of_convolutions() -> None:
    def takes(*shape: int) -> Signature:
        outputs = {"logits": OutputSpec(dtype="float32", shape=["batch", 2])}
        return Signature(inputs={"x": TensorSpec(dtype="float32", shape=["batch", *shape])}, outputs=outputs)

    assert has_layout(nn.Linear(4, 2), takes(3, 8, 8))
    assert has_layout(nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1)), takes(4))
    assert not has_layout(nn.Linear(4, 2), takes(4))
    assert not has_layout(nn.Conv1d(1, 2, 1), takes(1, 4))


@pytest.mark.parametrize(("slot_size", "batch", "nodes"), [("auto", 23, 1), (3, 16, 1), ("auto", 69, 3)])
def test_a_lone_last_sample_that_batch_norm_cannot_take_is_refused_before_anything_is_measured(
    small_shards: str, tmp_path: Path, slot_size: int | str, batch: int, nodes: int
) -> None:
    # Four halvings of 8 pixels: BatchNorm sees one value a channel.
    deep = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
    values = small_config(
        model={"architecture": "resnet", "arguments": deep},
        train={"global_batch_size": batch},
        parallel={"slot_size": slot_size},
        data={"image_size": 8},
    )
    config = RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})
    assignment = RankProbe(config, shards=small_shards, ranks=1, threads=1, nodes=nodes).assignment
    with one_rank() as rank, pytest.raises(ConfigError, match="leave a slot of one sample, on which resnet cannot"):
        Service(assignment, config, rank, tmp_path).hello()
