"""What every rank of a test does, under torchrun: `python -m torch.distributed.run ... on_ranks.py FOLDER SCENARIO...`.

The real stepper, cursor and evaluation on made-up images. The first rank saves what a scenario returns as
FOLDER/SCENARIO.pt; tests/trainer/parallel/test_parallel.py starts this and looks at it.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.resolve import parse_config
from tests.conftest import small_config
from tests.trainer.checkpoint.attempts import manifest
from trainer.checkpoint.commit import Peers
from trainer.checkpoint.loading import load_groups
from trainer.checkpoint.manager import CheckpointManager
from trainer.data.clock import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.order.cursor import slot_requests
from trainer.data.order.resolve import FullOrder
from trainer.data.transforms import Augmentation, EvaluationTransform, Mixing, TrainTransform
from trainer.evaluate import EVALUATION_BATCH, SplitPart, evaluate
from trainer.model.precision import Numerics
from trainer.optim import learning_rate
from trainer.parallel import local_rows, runs_in_lockstep
from trainer.parallel.process_group import Rank, process_group
from trainer.report.outcomes import Outcomes
from trainer.step import Stepper

SAMPLES, CLASSES, SIZE = 45, 3, 16
# 20 samples in slots of 4: five slots, which neither two nor three ranks share evenly; a last batch of 5 in two.
BATCHES = {"train": {"global_batch_size": 20, "learning_rate": 1e-3}, "parallel": {"slot_size": 4}}
VIT = {
    "architecture": "vit",
    "arguments": {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
                  "patch_size": 8},
}  # fmt: skip
# Every training of a test has a folder of its own; ranks count alike.
_folders = itertools.count()
# Where checkpoints are saved: ranks are told, a test that is a rank itself says so.
place = Path()
# Groups of tensors by name: model, optimizer and what follows it.
State = dict[str, dict[str, torch.Tensor]]


def make_config(model: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **parallel: Any) -> RunConfig:
    sections: dict[str, Any] = {
        "train": {**BATCHES["train"], **(train or {})},
        "parallel": {**BATCHES["parallel"], **parallel},
    }
    if model is not None:
        sections["model"] = model
    return parse_config(small_config(**sections), where="test")


class Run:
    """Training steps of one rank, from a state."""

    def __init__(self, config: RunConfig, rank: Rank, state: State | None = None, position: int = 0) -> None:
        self.config, self.rank, self.position = config, rank, position
        self.said: list[str] = []
        self.stepper = Stepper(config, CLASSES, rank, Numerics.of(config.train), self.said.append)
        self.stepper.warm_up(config.parallel.slot_size)  # type: ignore[arg-type]
        if state is not None:
            self.stepper.load(state, where="file:///shared")
        random = np.random.default_rng(5)
        self.images = torch.from_numpy(random.integers(0, 256, (SAMPLES, SIZE, SIZE, 3), dtype=np.uint8))
        self.labels = torch.from_numpy(random.integers(0, CLASSES, SAMPLES))
        evaluation = EvaluationTransform(SIZE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        self.transform = TrainTransform(
            SIZE, config.data.crop, False, evaluation, False, None, Augmentation.of(config.data), Mixing(0.0, 0.0)
        )
        self.losses: list[float] = []
        self.left_out = 0.0

    def take(self, steps: int) -> State:
        """Take optimizer steps; return the whole state, as a checkpoint has it."""
        batch = self.config.train.global_batch_size
        requests = slot_requests(
            self.position,
            order=FullOrder(SAMPLES, seed=3),
            epochs=1000,
            global_batch_size=batch,
            slot_size=self.config.parallel.slot_size,  # type: ignore[arg-type]
            rank=self.rank.rank,
            ranks=self.rank.ranks,
            lockstep=runs_in_lockstep(self.config.parallel),
        )
        self.stepper.model.train()
        clock = DataClock(self.rank.device)
        loss = torch.zeros((), device=self.rank.device)
        for request in requests:
            places = list(request.samples)
            slot = SlotBatch(request, self.images[places], self.labels[places])
            loss += self.stepper.compute(slot, self.transform, clock)
            if request.last_of_step:
                rate = learning_rate(request.step, total_steps=40, steps_per_epoch=3, train=self.config.train)
                self.left_out += float(self.stepper.update(request.step, rate))
                self.position += request.batch_samples
                dist.all_reduce(loss)
                self.losses.append(float(loss) / request.batch_samples)
                loss.zero_()
                steps -= 1
                if steps == 0:
                    break
        groups = load_groups(*self.save())
        # What was read shares memory of other types, which torch.save refuses.
        return {group: {name: tensor.clone() for name, tensor in of.items()} for group, of in groups.items()}

    def save(self) -> tuple[str, CheckpointManifest]:
        """Save a checkpoint, each rank its part; return where it is and its manifest."""
        folder = storage.normalise(place / f"training-{next(_folders)}")
        peers = Peers.of(self.rank, self.config)
        manager = CheckpointManager(folder, attempt="a", rules=self.config.checkpoint, peers=peers)
        manager.resume()
        assert manager.save(manifest(1), self.stepper.local_state())
        manager.wait()
        # The first rank commits.
        dist.barrier()
        found = manager.newest_valid()
        assert found.manifest is not None
        return found.uri, found.manifest


def strategies(rank: Rank) -> dict[str, Any]:
    """Same losses and parameters, whatever spreads the network."""
    found: dict[str, Any] = {}
    for name, parallel in {
        "ddp": {"bucket_mb": 0.005},
        "fsdp": {"strategy": "fsdp"},
        "copies": {"strategy": "fsdp", "shard_ranks": 1},
    }.items():
        for kind, model in (("resnet", None), ("vit", VIT)):
            run = Run(make_config(model, **parallel), rank)
            run.take(7)
            found[f"{name} {kind}"] = {"losses": run.losses, "said": run.said}
    return found


def resumes(rank: Rank) -> dict[str, Any]:
    """The state after nine steps, without a stop, with one after every second step, and continued by the other."""
    found: dict[str, Any] = {}
    # Small buckets: the network has 6,000 parameters. All that follows the optimizer, in both.
    train = {"ema_decay": 0.9, "clip_grad_norm": 0.5}
    ways = {"ddp": make_config(train=train, bucket_mb=0.005), "fsdp": make_config(train=train, strategy="fsdp")}
    for name, config in ways.items():
        run = Run(config, rank)
        found[name] = run.take(9)
        if name == "ddp":
            found["buckets"] = run.stepper._parallel._ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        state, position = None, 0
        for _ in range(4):
            part = Run(config, rank, state, position)
            state, position = part.take(2), part.position
        found[f"{name} resumed"] = Run(config, rank, state, position).take(1)
        other = ways["fsdp" if name == "ddp" else "ddp"]
        half = Run(config, rank)
        found[f"{name} changed"] = Run(other, rank, half.take(4), half.position).take(5)
    return found


def buffers(rank: Rank) -> dict[str, Any]:
    """Running statistics are the first rank's, and are those of the slots that it has computed, once each."""
    found: dict[str, Any] = {}
    for name, parallel in {"ddp": {}, "fsdp": {"strategy": "fsdp"}}.items():
        run = Run(make_config(**parallel), rank)
        run.take(1)
        before = [buffer.clone() for buffer in run.stepper.model.buffers()]
        gathered: list[Any] = [None] * rank.ranks
        dist.all_gather_object(gathered, before)
        found[name] = gathered
    return found


class NotTheSame(nn.Module):
    """A network that comes out otherwise on each rank, as a callable of the user's may."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8), nn.ReLU(), nn.Linear(8, num_classes))
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


def first_weights(rank: Rank) -> dict[str, Any]:
    """The weights that training begins with are the first rank's."""
    model = {"architecture": "tests.trainer.parallel.on_ranks:NotTheSame", "arguments": {}}
    found = {}
    for name, parallel in {
        "ddp": {},
        "fsdp": {"strategy": "fsdp"},
        "copies": {"strategy": "fsdp", "shard_ranks": 1},
    }.items():
        config = make_config(model, **parallel)
        stepper = Stepper(config, CLASSES, rank, Numerics.of(config.train), lambda message: None)
        found[name] = stepper.full_model_state()
    return found


def outcomes(rank: Rank) -> dict[str, Any]:
    """An evaluation of five batches, the last of them short, by a sharded and a whole network."""
    found: dict[str, Any] = {}
    count = 4 * EVALUATION_BATCH + 7
    random = np.random.default_rng(11)
    images = torch.from_numpy(random.normal(size=(count, 3, SIZE, SIZE)).astype(np.float32))
    labels = torch.from_numpy(random.integers(0, CLASSES, count))

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(rank.rank * EVALUATION_BATCH, count, rank.ranks * EVALUATION_BATCH):
            yield images[start : start + EVALUATION_BATCH], labels[start : start + EVALUATION_BATCH]

    for name, parallel in {"ddp": {}, "fsdp": {"strategy": "fsdp"}}.items():
        run = Run(make_config(**parallel), rank)
        result = Outcomes(CLASSES, rank.device)
        share = SplitPart(batches(), count, rank.rank, rank.ranks)
        evaluation = evaluate(run.stepper.model, share, rank.device, image_size=SIZE, outcomes=result)
        result.merge()
        # Training goes on after an evaluation, in the same parameters as the optimizer's.
        run.take(2)
        found[name] = {
            "evaluation": evaluation,
            "confusion": result.confusion(),
            "classes": [one.model_dump() for one in result.by_class(["a", "b", "c"])],
            "worst": result.worst(),
            "counts": result.counts().tolist(),
            "losses": run.losses,
        }
    return found


def refusals(rank: Rank) -> dict[str, str]:
    """What cannot work here, and what is said about it."""
    found = {}
    for name, parallel in {
        "shard_ranks": {"strategy": "fsdp", "shard_ranks": rank.ranks + 1},
        "cpu_offload": {"strategy": "fsdp", "cpu_offload": True},
        "sync_batch_norm": {"sync_batch_norm": True},
    }.items():
        try:
            config = make_config(**parallel)
            Stepper(config, CLASSES, rank, Numerics.of(config.train), lambda message: None)
            found[name] = "nothing"
        except ConfigError as error:
            found[name] = str(error)
    said: list[str] = []
    config = make_config(shard_ranks=1)
    Stepper(config, CLASSES, rank, Numerics.of(config.train), said.append)
    found["ignored"] = "\n".join(said)
    return found


def copies_of_shards(rank: Rank) -> dict[str, Any]:
    """Four ranks in two rows: what each has of the classifier's bias [3], and the training's course."""
    config = make_config(strategy="fsdp", shard_ranks=2)
    run = Run(config, rank)
    bias = next(p for name, p in run.stepper.model.named_parameters() if p.shape == (CLASSES,))
    assert isinstance(bias, DTensor)
    rows: list[Any] = [None] * rank.ranks
    dist.all_gather_object(rows, local_rows(bias))
    model = run.take(7)["model"]
    files = {file.name: file.bytes for file in run.save()[1].files_of("model")}
    half = Run(config, rank)
    resumed = Run(config, rank, half.take(4), half.position).take(3)["model"]
    return {"said": run.said[0], "rows": rows, "losses": run.losses, "model": model, "resumed": resumed, "files": files}


def on_gpu(rank: Rank) -> dict[str, Any]:
    """What needs a GPU: SyncBatchNorm, CPU offload, and the strategies on CUDA tensors."""
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": {"strategy": "fsdp"}}
    if dist.get_backend() == "nccl" or "nccl" in str(dist.get_backend_config()):
        ways["sync"] = {"sync_batch_norm": True}
        ways["offload"] = {"strategy": "fsdp", "cpu_offload": True}
    for name, parallel in ways.items():
        run = Run(make_config(**parallel), rank)
        state = run.take(5)
        again = Run(make_config(**parallel), rank, state, run.position)
        found[name] = {"losses": run.losses, "model": state["model"], "reloaded": again.stepper.full_model_state()}
    return found


SCENARIOS: dict[str, Callable[[Rank], Any]] = {
    "strategies": strategies,
    "resumes": resumes,
    "buffers": buffers,
    "first_weights": first_weights,
    "outcomes": outcomes,
    "refusals": refusals,
    "copies_of_shards": copies_of_shards,
    "on_gpu": on_gpu,
}


@contextmanager
def gloo_on_one_gpu() -> Iterator[Rank]:
    """Join the group with gloo, all ranks on the first GPU: NCCL takes one rank a GPU."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    yield Rank(rank, 0, ranks, torch.device("cuda", 0))
    dist.destroy_process_group()


def main(folder: str, *names: str) -> None:
    global place
    place = Path(folder)
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True)
    on_one_gpu = os.environ.get("RANKS_ON_ONE_GPU") == "1"
    with gloo_on_one_gpu() if on_one_gpu else process_group(0, setup_timeout_s=120) as rank:
        for name in names:
            found = SCENARIOS[name](rank)
            if rank.is_first:
                torch.save(found, Path(folder) / f"{name}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
