"""Training on made-up images, by the real stepper, cursor and checkpoints: what scenarios of on_ranks.py run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.config.load import parse_config
from tests.conftest import small_config
from tests.trainer.checkpoint.attempts import manifest, newest_valid
from tests.trainer.tasks.for_tests import task_of
from trainer.checkpoint.loading import load_groups, open_groups
from trainer.checkpoint.manager import CheckpointManager
from trainer.data.cursor import slot_requests
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.order import FullOrder
from trainer.model.numerics import Numerics
from trainer.optim import learning_rate
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import runs_in_lockstep
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
    """Training steps of one rank, from the beginning or from where another run has saved."""

    def __init__(self, config: RunConfig, rank: Rank, before: Run | None = None) -> None:
        self.config, self.rank = config, rank
        self.position = 0 if before is None else before.position
        self.said: list[str] = []
        self.stepper = self._make_stepper()
        if before is not None:
            uri, document = before.saved
            with open_groups(uri, document) as groups:
                self.stepper.load(groups, where=uri)
        random = np.random.default_rng(5)
        self.images = torch.from_numpy(random.integers(0, 256, (SAMPLES, SIZE, SIZE, 3), dtype=np.uint8))
        self.labels = torch.from_numpy(random.integers(0, CLASSES, SAMPLES))
        self.saved: tuple[str, CheckpointManifest]
        self.losses: list[float] = []
        self.left_out = 0.0

    def _make_stepper(self) -> Stepper:
        config, task = self.config, task_of(self.config, CLASSES)
        stepper = Stepper(config, task, self.rank, Numerics.of(config.train), self.said.append)
        stepper.warm_up(config.parallel.slot_size)  # type: ignore[arg-type]
        return stepper

    def take(self, steps: int) -> State:
        """Take optimizer steps and save; return the whole state, as the checkpoint has it."""
        self.step(steps)
        self.saved = self.save()
        return load_groups(*self.saved)

    def step(self, steps: int) -> None:
        """Take optimizer steps."""
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
            slot = SlotBatch(request, {"images": self.images[places], "label": self.labels[places]})
            loss += self.stepper.compute(slot, clock)
            if request.last_of_step:
                rate = learning_rate(request.step, total_steps=40, train=self.config.train)
                self.left_out += float(self.stepper.update(request.step, rate).skipped)
                self.position += request.batch_samples
                dist.all_reduce(loss)
                self.losses.append(float(loss) / request.batch_samples)
                loss.zero_()
                steps -= 1
                if steps == 0:
                    break

    def save(self) -> tuple[str, CheckpointManifest]:
        """Save a checkpoint, each rank its part; return where it is and its manifest."""
        folder = storage.normalise(place / f"training-{next(_folders)}")
        sharded = self.config.parallel.strategy == "fsdp"
        manager = CheckpointManager(folder, attempt="a", rules=self.config.checkpoint, rank=self.rank, sharded=sharded)
        manager.resume()
        self.stepper.share_buffers()
        assert manager.save(manifest(1), self.stepper.state())
        manager.wait()
        # The first rank commits.
        dist.barrier()
        found = newest_valid(manager)
        assert found.manifest is not None
        return found.uri, found.manifest
