"""Whether a network takes statistics from its slots, and whether it has a memory layout to choose."""

import pytest
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.model.freeze import find_frozen, freeze
from trainer.profiling.service import has_batch_norm, has_layout


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
