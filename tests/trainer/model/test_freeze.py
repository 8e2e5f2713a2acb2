"""What model.freeze names stays as it is, statistics included, and what it cannot name is refused."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.trainer.one_rank import one_rank
from tests.trainer.tasks.for_tests import task_of
from tests.trainer.test_step import slots
from trainer.data.device import DataClock
from trainer.model.freeze import Frozen, find_frozen, freeze, keep_statistics
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.step import Stepper

BODY = ["*resnet*"]
DROPS = {"architecture": "tests.trainer.parallel.networks:DropsLayers", "arguments": {}}


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with one_rank() as rank:
        yield rank


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
        (["batch*"], {"batch.weight", "batch.bias"}, ("batch",)),
        (["batch.weight"], {"batch.weight"}, ()),
        (["bare.*"], set(), ("bare",)),
        (["*running_*"], set(), ("batch", "bare", "instance")),
        (["instance*", "stateless*"], {f"{n}.{p}" for n in ("instance", "stateless") for p in ("weight", "bias")},
         ("instance",)),
    ],
)  # fmt: skip
def test_patterns_name_parameters_and_layers_whose_statistics_stay(
    patterns: list[str], parameters: set[str], norms: tuple[str, ...]
) -> None:
    assert find_frozen(Norms(), patterns) == Frozen(frozenset(parameters), norms)


@pytest.mark.parametrize(("pattern", "said"), [("bacth.weight", "batch.weight"), ("zzz*", "..."), ("table", "...")])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match="matches no parameter") as caught:
        find_frozen(Norms(), ["batch*", pattern])
    assert caught.value.exit_code == 2
    assert pattern in str(caught.value) and said in caught.value.allowed


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


def make(rank: Rank, model: dict[str, Any], train: dict[str, Any] | None = None, **more: Any) -> Stepper:
    values = small_config(
        model=model,
        train={"global_batch_size": 16, "epochs": 3, **(train or {})},
        parallel=more.pop("parallel", {}),
    )
    config = RunConfig.model_validate(values)
    stepper = Stepper(
        config, task_of(config, 3), rank, Numerics.of(config.train), more.pop("log", lambda message: None), **more
    )
    stepper.warm_up(4)
    return stepper


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_no_bit_of_what_is_frozen_changes(rank: Rank, optimizer: str) -> None:
    said: list[str] = []
    train = {"optimizer": optimizer, "ema_decay": 0.9, "weight_decay": 0.1}
    stepper = make(rank, {"freeze": BODY}, train, log=said.append)
    before = {name: tensor.clone() for name, tensor in stepper.model.state_dict().items()}
    clock = DataClock(torch.device("cpu"))
    for slot in slots(4):
        stepper.compute(slot, clock)
        # No backward pass either.
        assert not any("resnet" in name for name, p in stepper.model.named_parameters() if p.grad is not None)
        if slot.request.last_of_step:
            stepper.update(slot.request.step, 0.1)
    changed = {name for name, tensor in stepper.model.state_dict().items() if not torch.equal(before[name], tensor)}
    assert changed and all("classifier" in name for name in changed)
    state = stepper.state()
    assert all("classifier" in name for group in ("optimizer", "ema") for name in state[group])
    assert list(stepper._buffers_that_change()) == []
    assert any("18 parameters are frozen" in one and "6 normalisation layers" in one for one in said), said


def test_frozen_blocks_may_be_left_out_at_random(rank: Rank) -> None:
    make(rank, {**DROPS, "freeze": ["stem*", "blocks*"]}, parallel={"strategy": "fsdp"})
