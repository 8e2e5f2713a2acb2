"""Losses that count no samples: each pixel has a weight of 0 or 1; texts of any length count their tokens.

Run by torchrun (test_gradients.py): `python -m torch.distributed.run ... weighted.py FOLDER`. Each rank takes two steps
of every case: of 10 samples in slots of 4, 4 and 2, and of 3 samples, of which the second rank has none. The first rank
saves what they come to, and what one plain process computes on the whole batches.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.config import RunConfig
from contracts.config.load import parse_config
from tests.conftest import small_config
from trainer.data.cursor import slot_requests
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.order import FullOrder
from trainer.model.numerics import LossScale, Numerics
from trainer.optim import clip_divisor
from trainer.parallel.process_group import Rank, process_group
from trainer.parallel.spread import full_tensor, runs_in_lockstep
from trainer.step import Stepper
from trainer.tasks.protocol import Batch, Loss, Mode

SAMPLES, BATCH, SLOT, SIDE = 13, 10, 4, 6
TOKENS, TAGS, LONGEST = 11, 5, 24
RATE, CLIP = 0.1, 0.05


class Momentum(torch.optim.Optimizer):
    """An optimizer that is not fused: gradients are divided before it sees them, and it cannot be told to wait."""

    def __init__(self, groups: Any, rate: float) -> None:
        super().__init__(groups, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                buffer = state.setdefault("buffer", torch.zeros_like(parameter))
                buffer.mul_(0.9).add_(parameter.grad)
                parameter.sub_(group["lr"] * buffer)


class Weighted:
    """Images to one number for each pixel; the loss is the squared error, where a pixel has a weight."""

    fields: Mapping[str, str] = {}
    headline = "loss"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        shape: list[int | str] = ["batch", 3, SIDE, SIDE]
        self.signature = Signature(
            inputs={"images": TensorSpec(dtype="float32", shape=shape)},
            outputs={"heights": OutputSpec(dtype="float32", shape=["batch", 1, SIDE, SIDE])},
        )

    def build_model(self) -> nn.Module:
        layers = (nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 1, 1))
        return nn.Sequential(*layers).to(self.dtype)

    def example(self, size: int) -> Batch:
        images = torch.zeros(size, 3, SIDE, SIDE, dtype=self.dtype)
        return {"images": images, "heights": images[:, :1], "weight": images[:, :1].bool().logical_not()}

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        return batch

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        error = (outputs - batch["heights"]) ** 2
        return (error * batch["weight"]).sum(), batch["weight"].sum()

    def samples(self) -> Batch:
        """All of them; `take` makes batches."""
        random = torch.Generator().manual_seed(3)
        images = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=random).to(self.dtype)
        # Far from 0: else gradients of biases are small differences of large numbers.
        heights = 3 + torch.randn(SAMPLES, 1, SIDE, SIDE, generator=random).to(self.dtype)
        # Slots count very different numbers of pixels, one sample none.
        weight = torch.rand(SAMPLES, 1, SIDE, SIDE, generator=random) < torch.linspace(0, 1, SAMPLES).view(-1, 1, 1, 1)
        return {"images": images, "heights": heights, "weight": weight}

    def take(self, data: Batch, places: list[int]) -> Batch:
        return {name: tensor[places] for name, tensor in data.items()}


class Tagging(nn.Module):
    """Tokens to scores of a tag for each, in the light of the mean of all tokens of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 6, padding_idx=0)
        self.scores = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, TAGS))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        vectors = self.tokens(tokens)
        shares = (mask / mask.sum(1, keepdim=True)).unsqueeze(2).to(vectors.dtype)
        mean = (vectors * shares).sum(1, keepdim=True).expand_as(vectors)
        scores: torch.Tensor = self.scores(torch.cat([vectors, mean], dim=2))
        return scores


class Tagged(Weighted):
    """A tag for each token of texts of different lengths, padded to the longest of a slot; the count is of tokens."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        tokens = TensorSpec(dtype="int64", shape=["batch", "length"])
        self.signature = Signature(
            inputs={"tokens": tokens, "mask": tokens},
            outputs={"scores": OutputSpec(dtype="float32", shape=["batch", "length", TAGS])},
            dimensions={"length": Dimension(min=2, opt=8, max=LONGEST)},
        )

    def build_model(self) -> nn.Module:
        return Tagging().to(self.dtype)

    def example(self, size: int) -> Batch:
        tokens = torch.ones(size, 8, dtype=torch.int64)
        return {"tokens": tokens, "mask": tokens, "tags": torch.zeros_like(tokens)}

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        each = nn.functional.cross_entropy(outputs.flatten(0, 1), batch["tags"].flatten(), reduction="none")
        return (each * batch["mask"].flatten()).sum(), batch["mask"].sum()

    def samples(self) -> Batch:
        random = torch.Generator().manual_seed(3)
        lengths = torch.randint(1, LONGEST + 1, (SAMPLES,), generator=random)
        mask = (torch.arange(LONGEST) < lengths[:, None]).long()
        tokens, tags = (torch.randint(1, most, mask.shape, generator=random) * mask for most in (TOKENS, TAGS))
        return {"tokens": tokens, "mask": mask, "tags": tags}

    def take(self, data: Batch, places: list[int]) -> Batch:
        longest = int(data["mask"][places].sum(1).max())
        return {name: tensor[places, :longest] for name, tensor in data.items()}


class WithMomentum(Weighted):
    """The same with an optimizer of its own."""

    def optimizer(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return Momentum(groups, rate)


@dataclass(frozen=True)
class Case:
    """What a training is made of."""

    dtype: torch.dtype = torch.float32
    optimizer: str = "sgd"
    clip: float | None = None
    scaled: bool = False
    strategy: str = "ddp"
    counts: str = "pixels"

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
    def task(self) -> Weighted:
        if self.counts == "tokens":
            return Tagged(self.dtype)
        return (WithMomentum if self.optimizer == "own" else Weighted)(self.dtype)


def cases() -> Iterator[Case]:
    for optimizer, clip, scaled in itertools.product(("sgd", "adamw", "own"), (None, CLIP), (False, True)):
        yield Case(torch.float64, optimizer, clip, scaled)
    yield Case(optimizer="adamw", clip=CLIP, scaled=True)
    yield Case(optimizer="own")
    yield Case(strategy="fsdp", clip=CLIP)
    yield Case(strategy="fsdp", optimizer="own")
    yield Case(torch.float64, counts="tokens")
    yield Case(clip=CLIP, counts="tokens")
    yield Case(torch.float64, "adamw", scaled=True, counts="tokens")
    yield Case(strategy="fsdp", clip=CLIP, counts="tokens")


def train(case: Case, rank: Rank) -> dict[str, Any]:
    """Take the two steps as training does; return parameters and the optimizer's state, whole."""
    config, task = case.config, case.task
    data = task.samples()
    stepper = Stepper(config, task, rank, Numerics.of(config.train), lambda message: None)  # type: ignore[arg-type]
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
            assert float(update.left_out) == 0
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
    if case.optimizer == "own":
        optimizer: torch.optim.Optimizer = Momentum(named.values(), RATE)
    elif case.optimizer == "adamw":
        optimizer = torch.optim.AdamW(named.values(), lr=RATE, weight_decay=0.0)
    else:
        optimizer = torch.optim.SGD(named.values(), lr=RATE, momentum=0.9)
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


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with process_group(setup_timeout_s=60) as rank:
        found = [(case, train(case, rank)) for case in cases()]
        if rank.is_first:
            torch.save([(case, ours, plain(case)) for case, ours in found], Path(folder) / "found.pt")
    # What is asked is what the steps come to: once in CI a rank was aborted while it ended (not in 61 runs by hand).
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
