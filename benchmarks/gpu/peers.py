"""Peers of the training loop on data that is resident on the device: a bare DDP loop, and Lightning's Trainer.

    torchrun --nproc-per-node=N --module benchmarks.gpu.peers bare_ddp|lightning SETTING

Same network, batch, precision and optimizer (fused AdamW) as the trainer's; what is missing is everything else: no
loader, no augmentation, no checkpoints, no look at gradients that are not finite. The first rank prints samples per
second of all ranks by variant: the median over windows of steps, of which the first is warm-up and left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, islice, pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.gpu.setting import CLASSES, Setting
from contracts.config import ModelSection
from tests.trainer.tasks.for_tests import image_network

WINDOW_STEPS = 10
WINDOWS = 5
RESIDENT_BATCHES = 4
# By the names of the cases whose rate they stand beside.
VARIANTS = ("fp32", "bf16", "channels-last")

Batch = tuple[torch.Tensor, torch.Tensor]


def run_bare_ddp(setting: Setting, variant: str, device: torch.device) -> float:
    """Train by a loop as PyTorch's tutorials have it; return seconds per step."""
    channels_last = variant == "channels-last"
    network = make_network(setting).to(device)
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = nn.parallel.DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ends = []
    for step, (images, labels) in enumerate(resident_batches(setting, device, channels_last=channels_last), start=1):
        with autocast(variant, device):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % WINDOW_STEPS == 0:
            loss.item()  # waits for the device
            ends.append(time.perf_counter())
    return step_seconds(ends)


def run_lightning(setting: Setting, variant: str, device: torch.device) -> float:
    """Train by Lightning's Trainer; return seconds per step."""
    lightning = importlib.import_module("lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning")
    channels_last = variant == "channels-last"
    ends: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            network = make_network(setting)
            if channels_last:
                network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.network = network

        def training_step(self, batch: Batch, index: int) -> torch.Tensor:
            return functional.cross_entropy(self.network(batch[0]), batch[1])

        def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: Batch, index: int) -> None:
            if (index + 1) % WINDOW_STEPS == 0:
                outputs["loss"].item()
                ends.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=setting.ranks,
        strategy="ddp",
        precision="32-true" if variant == "fp32" else "bf16-mixed",
        benchmark=True,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), _Batches(setting, device, channels_last))
    return step_seconds(ends)


class _Batches:
    """Resident batches as an iterable with a length, which Lightning asks for."""

    def __init__(self, setting: Setting, device: torch.device, channels_last: bool) -> None:
        self._arguments, self._channels_last = (setting, device), channels_last

    def __iter__(self) -> Iterator[Batch]:
        return iter(resident_batches(*self._arguments, channels_last=self._channels_last))

    def __len__(self) -> int:
        return WINDOW_STEPS * WINDOWS


def make_network(setting: Setting) -> nn.Module:
    """Return the network of the configuration, the same on every rank."""
    torch.manual_seed(0)
    section = ModelSection.model_validate(setting.config["model"])
    return image_network(section, CLASSES, setting.image_size)


def resident_batches(setting: Setting, device: torch.device, *, channels_last: bool) -> Iterable[Batch]:
    """Return this rank's batches of random images, which lie on the device: a few of them, again and again."""
    count, side = setting.global_batch_size // setting.ranks, setting.image_size
    layout = torch.channels_last if channels_last else torch.contiguous_format
    held = [
        (
            torch.randn(count, 3, side, side, device=device).contiguous(memory_format=layout),
            torch.randint(CLASSES, (count,), device=device),
        )
        for _ in range(RESIDENT_BATCHES)
    ]
    return islice(cycle(held), WINDOW_STEPS * WINDOWS)


def autocast(variant: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    return nullcontext() if variant == "fp32" else torch.autocast(device.type, dtype=torch.bfloat16)


def step_seconds(ends: list[float]) -> float:
    """Return the median seconds of a step between the ends of windows."""
    return statistics.median(later - earlier for earlier, later in pairwise(ends)) / WINDOW_STEPS


def main() -> None:
    """Run a peer in all variants of the device."""
    kind, setting = sys.argv[1], Setting.from_json(sys.argv[2])
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if setting.on_gpu else torch.device("cpu")
    torch.set_num_threads(max(1, setting.cores // setting.ranks))
    if setting.on_gpu:
        torch.cuda.set_device(device)
        # As the trainer's default (train.tf32) has it; the search for the fastest convolutions is the peers' to win.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    if kind == "bare_ddp":
        dist.init_process_group("nccl" if setting.on_gpu else "gloo", device_id=device if setting.on_gpu else None)
    run = {"bare_ddp": run_bare_ddp, "lightning": run_lightning}[kind]
    rates = {}
    for variant in VARIANTS if setting.on_gpu else ("fp32", "bf16"):
        rates[variant] = round(setting.global_batch_size / run(setting, variant, device), 1)
    if os.environ["RANK"] == "0":
        print(json.dumps(rates), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
