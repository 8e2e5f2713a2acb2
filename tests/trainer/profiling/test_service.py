"""Whether a network takes statistics from its slots."""

import pytest
from torch import nn

from trainer.model.freeze import find_frozen, freeze
from trainer.profiling.service import has_batch_norm


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


def test_frozen_ones_count_only_where_they_learn_later() -> None:
    still = network(nn.BatchNorm2d(4)).eval()
    for each in (frozen(), still):
        assert not has_batch_norm(each)
        assert has_batch_norm(each, with_frozen=True)
    # Its bias learns: its statistics do too.
    assert has_batch_norm(frozen("*.weight"))
    # One that is frozen and one that is not.
    assert has_batch_norm(nn.Sequential(frozen(), network(nn.BatchNorm1d(4))))
