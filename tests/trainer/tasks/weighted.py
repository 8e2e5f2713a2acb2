"""A loss that counts tokens of texts of any length, trained by several ranks (see splits.py) and by one plain process.

Each rank takes two steps of every case: of 10 samples in slots of 4, 4 and 2, and of 3 samples, of which some ranks
have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.config import RunConfig
from contracts.config.load import parse_config
from tests.conftest import small_config
from tests.trainer.tasks.small import Small
from trainer.data.cursor import slot_requests
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.order import FullOrder
from trainer.model.numerics import LossScale, Numerics
from trainer.optim import clip_divisor
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import full_tensor, runs_in_lockstep
from trainer.step import Stepper
from trainer.tasks.task import Batch, Loss, Mode

SAMPLES, BATCH, SLOT = 13, 10, 4
TOKENS, TAGS, LONGEST = 11, 5, 24
RATE, CLIP = 0.1, 0.05


# Not fused: gradients are divided before it sees them, and it cannot be told on the device to leave a step out.
OWN_OPTIMIZER = partial(torch.optim.SGD, momentum=0.9)


class Tagged(Small):
    """A tag for each token of texts of any length, padded to the longest of a slot; the count is of tokens."""

    def __init__(self, dtype: torch.dtype, own_optimizer: Callable[..., torch.optim.Optimizer] | None = None) -> None:
        self.dtype, self.own_optimizer = dtype, own_optimizer
        tokens = TensorSpec(dtype="int64", shape=["batch", "length"])
        self.signature = Signature(
            inputs={"tokens": tokens},
            outputs={"scores": OutputSpec(dtype="float32", shape=["batch", "length", TAGS])},
            dimensions={"length": Dimension(min=2, opt=8, max=LONGEST)},
        )

    def build_model(self) -> nn.Module:
        layers = (nn.Embedding(TOKENS, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, TAGS))
        return nn.Sequential(*layers).to(self.dtype)

    def optimizer(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer | None:
        return None if self.own_optimizer is None else self.own_optimizer(groups, rate)

    def example(self, size: int) -> Batch:
        tokens = torch.ones(size, 8, dtype=torch.int64)
        return {"tokens": tokens, "mask": tokens, "tags": torch.zeros_like(tokens)}

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        each = nn.functional.cross_entropy(outputs.flatten(0, 1), batch["tags"].flatten(), reduction="none")
        return (each * batch["mask"].flatten()).sum(), batch["mask"].sum()

    def samples(self) -> Batch:
        """All of them; `take` makes batches."""
        random = torch.Generator().manual_seed(3)
        # Slots count very different numbers of tokens, one sample none.
        lengths = torch.randint(1, LONGEST + 1, (SAMPLES,), generator=random)
        lengths[5] = 0
        mask = (torch.arange(LONGEST) < lengths[:, None]).long()
        tokens, tags = (torch.randint(1, most, mask.shape, generator=random) * mask for most in (TOKENS, TAGS))
        return {"tokens": tokens, "mask": mask, "tags": tags}

    def take(self, data: Batch, places: list[int]) -> Batch:
        longest = max(2, int(data["mask"][places].sum(1).max()))
        return {name: tensor[places, :longest] for name, tensor in data.items()}


@dataclass(frozen=True)
class Case:
    """What a training is made of."""

    dtype: torch.dtype = torch.float32
    optimizer: str = "sgd"
    clip: float | None = None
    scaled: bool = False
    strategy: str = "ddp"

    @property
    def config(self) -> RunConfig:
        train = {
            "global_batch_size": BATCH,
            "learning_rate": RATE,
            "weight_decay": 0.0,
            "clip_grad_norm": self.clip,
            "optimizer": "adamw" if self.optimizer == "adamw" else "sgd",
            "momentum": 0.9,
        }
        parallel = {"slot_size": SLOT, "strategy": self.strategy}
        return parse_config(small_config(train=train, parallel=parallel), where="test")

    @property
    def task(self) -> Tagged:
        return Tagged(self.dtype, OWN_OPTIMIZER if self.optimizer == "own" else None)


def cases() -> Iterator[Case]:
    yield Case(torch.float64, "sgd")
    yield Case(torch.float64, "adamw", CLIP, scaled=True)
    yield Case(torch.float64, "own", CLIP, scaled=True)
    yield Case(strategy="fsdp", clip=CLIP)
    yield Case(strategy="fsdp", optimizer="own")


def train(case: Case) -> dict[str, Any]:
    """Take the two steps as training does; return parameters and the optimizer's state, whole."""
    torch.use_deterministic_algorithms(True)
    rank = Rank(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    config, task = case.config, case.task
    data = task.samples()
    stepper = Stepper(config, task, rank, Numerics.of(config.train), lambda message: None)
    if case.scaled:
        # The scale alone, without fp16's rounding.
        stepper._scale = LossScale(rank.device)
    stepper.warm_up(SLOT)
    stepper.model.train()
    requests = slot_requests(
        0,
        order=FullOrder(SAMPLES, seed=3),
        epochs=1,
        global_batch_size=BATCH,
        slot_size=SLOT,
        rank=rank.rank,
        ranks=rank.ranks,
        lockstep=runs_in_lockstep(config.parallel),
    )
    counts = []
    for request in requests:
        batch = task.take(data, list(request.samples))
        stepper.compute(SlotBatch(request, batch), DataClock(rank.device))
        if request.last_of_step:
            update = stepper.update(request.step, RATE)
            assert float(update.skipped) == 0
            counts.append(int(update.count))
    state = {name: full_tensor(tensor) for name, tensor in stepper.state()["optimizer"].items()}
    return {
        "parameters": {name: full_tensor(tensor.detach()) for name, tensor in stepper.model.named_parameters()},
        "state": state,
        "counts": counts,
    }


def plain(case: Case) -> dict[str, Any]:
    """Do the same in one process: the mean over the whole batch, and torch's own optimizer."""
    task = case.task
    data = task.samples()
    torch.manual_seed(case.config.run.seed)
    model = task.build_model()
    named = dict(model.named_parameters())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(named.values(), lr=RATE, momentum=0.9)
    if case.optimizer == "adamw":
        optimizer = torch.optim.AdamW(named.values(), lr=RATE, weight_decay=0.0)
    order, counts = FullOrder(SAMPLES, seed=3).places(0, 0, SAMPLES), []
    for places in (order[:BATCH], order[BATCH:]):
        batch = task.take(data, places.tolist())
        total, count = task.loss(model(*(batch[name] for name in task.signature.inputs)), batch, Mode(training=True))
        optimizer.zero_grad()
        (total / count).backward()
        if case.clip is not None:
            divisor = clip_divisor(torch.nn.utils.get_total_norm([p.grad for p in named.values()]), case.clip)
            for parameter in named.values():
                assert parameter.grad is not None
                parameter.grad /= divisor
        optimizer.step()
        counts.append(int(count))
    state = {
        f"{name}/{entry}": value
        for name, parameter in named.items()
        for entry, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor)
    }
    parameters = {name: parameter.detach() for name, parameter in named.items()}
    return {"parameters": parameters, "state": state, "counts": counts}


CASES = {str(number): partial(train, case) for number, case in enumerate(cases())}
