"""What model.freeze names stays as it is, statistics included, and what it cannot name is refused."""

import copy

import pytest
import torch
from torch import nn

from contracts.errors import ConfigError
from trainer.model.freeze import Frozen, find_frozen, freeze, keep_statistics


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm2d(2)
        self.bare = nn.BatchNorm2d(2, affine=False)
        self.instance = nn.InstanceNorm2d(2, affine=True, track_running_stats=True)
        self.stateless = nn.InstanceNorm2d(2, affine=True)
        self.head = nn.Conv2d(2, 2, 1)
        self.register_buffer("table", torch.zeros(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = self.instance(self.bare(self.batch(images)))
        return self.head(self.stateless(images))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("patterns", "parameters", "norms"),
    [
        (["batch.weight"], {"batch.weight"}, ()),
        (["*running_*"], set(), ("batch", "bare", "instance")),
        (["instance*", "stateless*"], {f"{n}.{p}" for n in ("instance", "stateless") for p in ("weight", "bias")},
         ("instance",)),
    ],
)  # fmt: skip
def test_patterns_name_parameters_and_layers_whose_statistics_stay(
    patterns: list[str], parameters: set[str], norms: tuple[str, ...]
) -> None:
    assert find_frozen(Norms(), patterns) == Frozen(frozenset(parameters), norms)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="matches no parameter") as caught:
        find_frozen(Norms(), ["batch*", "bacth.weight"])
    assert "batch.weight" in caught.value.allowed


def test_statistics_stay_whoever_sets_the_mode() -> None:
    model = nn.Sequential(Norms(), nn.Conv2d(2, 2, 1))
    freeze(model, find_frozen(model, ["*batch.*", "*bare*"]))
    twin = copy.deepcopy(model)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    keep_statistics(synchronised, find_frozen(model, ["*batch.*", "*bare*"]).norms)
    synchronised.train()
    assert not any(module.training for module in synchronised.modules() if isinstance(module, nn.SyncBatchNorm))
    for one in (model, twin, nn.Sequential(model)):
        before = {name: tensor.clone() for name, tensor in one.named_buffers()}
        one.eval()
        one.train()
        assert one.training
        one(torch.randn(4, 2, 5, 5))
        changed = {name for name, tensor in one.named_buffers() if not torch.equal(before[name], tensor)}
        assert changed and all("instance" in name for name in changed)
    assert all(twin.get_submodule(name).train.__self__ is twin.get_submodule(name) for name in ("0.batch", "0.bare"))  # type: ignore[union-attr,attr-defined]
