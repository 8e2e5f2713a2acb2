"""Peers of the training loop, as ranks under torchrun: `torchrun ... benchmarks/training_arms.py bare|lightning JSON`.

All train the model of the configuration on the same slots of the same shards, read by the same reader and taken by the
same AdamW; what differs is the loop. Rank 0 prints the seconds between two looks at the loss, as our own loop's events
have them.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from trainer.data.loader import SlotBatch, SlotDataset
from trainer.data.order.cursor import SlotRequest, slot_requests
from trainer.data.order.resolve import make_order, resolve_order
from trainer.data.reader import ShardReader
from trainer.model.build import build_model
from trainer.optim import make_optimizer
from trainer.tasks.load import load_task
from trainer.tasks.protocol import Mode, Task

MODE = Mode(training=True)


def make_parts(config: RunConfig, shards: str, rank: int, ranks: int) -> tuple[nn.Module, DataLoader[Any], Task]:
    """Return the model, the loader of a rank's slots of one epoch, and the task."""
    manifest = ShardManifest.load(shards)
    torch.manual_seed(config.run.seed)
    torch.use_deterministic_algorithms(True)
    task = load_task(config, manifest, shards)
    model = build_model(task, config)
    reader = ShardReader(shards, manifest, "train", config.data, None)
    choice = resolve_order(config.data, shards, manifest, None)
    order = make_order(choice.order, shards, manifest, seed=config.run.seed)
    assert isinstance(config.parallel.slot_size, int) and isinstance(config.data.num_workers, int)
    requests = slot_requests(
        0,
        order=order,
        epochs=1,
        global_batch_size=config.train.global_batch_size,
        slot_size=config.parallel.slot_size,
        rank=rank,
        ranks=ranks,
    )
    loader = DataLoader(
        SlotDataset(reader, task, config.run.seed),
        batch_size=None,
        sampler=_Whole(list(requests)),
        num_workers=config.data.num_workers,
    )
    return model, loader, task


class _Whole(torch.utils.data.Sampler[SlotRequest]):
    def __init__(self, requests: list[SlotRequest]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[SlotRequest]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)


def train_bare(config: RunConfig, shards: str, every: int) -> list[float]:
    """Train by a loop of a dozen lines; return the times of looks at the loss."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    network, loader, task = make_parts(config, shards, rank, ranks)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = make_optimizer(network, config.train, task=task)
    times, total = [], torch.zeros(())
    for step, slot in enumerate(loader, start=1):
        batch = task.to_model(slot.batch, MODE)
        loss, _ = task.loss(model(batch["images"]), batch, MODE)
        (loss * (ranks / slot.request.batch_samples)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if step % every == 0:
            dist.all_reduce(total)
            total.item()
            total.zero_()
            times.append(time.time())
    return times


def train_lightning(config: RunConfig, shards: str, every: int) -> list[float]:
    """Train by Lightning's Trainer; return the times of looks at the loss."""
    import lightning

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    network, loader, task = make_parts(config, shards, rank, ranks)
    times: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.total = torch.zeros(())

        def training_step(self, slot: SlotBatch, index: int) -> torch.Tensor:
            batch = task.to_model(slot.batch, MODE)
            loss, _ = task.loss(self.network(batch["images"]), batch, MODE)
            self.total += loss.detach()
            if (index + 1) % every == 0:
                dist.all_reduce(self.total)
                self.total.item()
                self.total.zero_()
                times.append(time.time())
            return loss * (ranks / slot.request.batch_samples)

        def transfer_batch_to_device(self, batch: SlotBatch, device: torch.device, index: int) -> SlotBatch:
            return batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.network, config.train, task=task)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), loader)
    return times


def main() -> None:
    """Run one arm."""
    kind, text = sys.argv[1:]
    given = json.loads(text)
    config = RunConfig.model_validate(given["config"])
    torch.set_num_threads(1)
    # A run takes a quarter of a minute: one that hangs says where, and is taken again.
    faulthandler.dump_traceback_later(120, exit=True)
    train = {"bare": train_bare, "lightning": train_lightning}[kind]
    times = train(config, given["shards"], given["every"])
    if os.environ["RANK"] == "0":
        print(json.dumps(times), flush=True)
    _leave()


def _leave() -> NoReturn:
    """End at once, when all ranks are here: with a barrier and the group's end a rank was seen to wait for good."""
    store = dist.distributed_c10d._get_default_store()
    store.add("left", 1)
    while store.add("left", 0) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
