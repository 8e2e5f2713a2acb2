"""What a rank of the probe does for a request: the measurements of bench.py, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.artifacts import Flags, ProfileReport, Settings
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from trainer.data.training_data import TrainingData
from trainer.launch import Assignment
from trainer.launch.auto import choose_flags
from trainer.model.precision import Numerics, fix_numerics
from trainer.parallel.process_group import Rank
from trainer.profiling.bench import Bench
from trainer.profiling.board import write_board
from trainer.profiling.measure import ComputeTime, Counted, Hello, JointRate, LoaderRate
from trainer.profiling.tracing import trace

# Epochs of what is measured: no end in sight.
_ENDLESS = 1_000_000


class Service:
    """The measurements of one rank.

    Args:
        assignment: What it is told, as a rank of training is.
        config: The configuration.
        rank: This process among its peers.
    """

    def __init__(self, assignment: Assignment, config: RunConfig, rank: Rank) -> None:
        self._assignment, self._config, self._rank = assignment, config, rank
        self._bench: Bench | None = None

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        """Do what is asked for; after an error nothing is kept that it may have spoilt."""
        methods: dict[str, Callable[..., Any]] = {
            "hello": self.hello,
            "prepare": self.prepare,
            "load": self.load,
            "fit": self.fit,
            "compute": self.compute,
            "run": self.run,
            "open": self.open,
            "window": self.window,
            "close": self.close,
            "trace": self.trace,
            "write_board": self.write_board,
        }
        try:
            return methods[name](**arguments)
        except Exception:
            if self._bench is not None:
                self._bench.forget()
            raise

    def hello(self) -> Hello:
        """Read the shards, build the network as training would without a profile, and describe the device."""
        config, rank = self._config, self._rank
        numerics = Numerics.of(config.train)
        numerics.check(rank.device, allow_slow=config.train.allow_slow_precision)
        train = config.train.model_copy(
            update={"epochs": _ENDLESS, "max_steps": None, "global_batch_size": self._share_of_machine()}
        )
        endless = config.model_copy(update={"train": train})
        feed = TrainingData(self._assignment, endless, rank, lambda message: None)
        fix_numerics(self._assignment.threads, rank.device)
        self._bench = Bench(feed, endless, rank)
        if (most := config.profile.memory_bytes) is not None:
            self._bench.memory.limit_to(most)
        self._bench.prepare(choose_flags(config.train, None))
        return Hello(
            kind="cuda" if rank.device.type == "cuda" else "cpu",
            name=torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else "CPU",
            has_bf16=_has_bf16(rank.device),
            memory_limit_bytes=self._bench.memory.limit_bytes(rank.ranks),
            samples=feed.samples,
            # What learns later counts from the start: the slot size is fixed by then.
            varies=self._bench.varies,
            has_layout=has_layout(self._bench.stepper.model, feed.task.signature),
            has_images="image" in feed.task.fields.values(),
            gradient_bytes=sum(
                each.numel() * each.element_size()
                for each in self._bench.stepper.model.parameters()
                if each.requires_grad or train.unfreeze_epoch is not None
            ),
            has_batch_norm=has_batch_norm(self._bench.stepper.model, with_frozen=train.unfreeze_epoch is not None),
        )

    def prepare(self, flags: Flags) -> None:
        """Build the network with these flags, which ranks do together."""
        self._required().prepare(flags)

    def load(self, slot_size: int, num_workers: int, prefetch_factor: int, threads: int) -> LoaderRate:
        """Measure the loader alone."""
        return self._required().load(slot_size, num_workers, prefetch_factor, threads)

    def fit(self, slot_size: int, threads: int, flags: Flags) -> int | None:
        """Run a slot without peers; return the peak of memory in bytes."""
        return self._required().fit(slot_size, threads, flags)

    def compute(self, slot_size: int, threads: int, flags: Flags) -> ComputeTime:
        """Measure steps alone."""
        return self._required().compute(slot_size, threads, flags)

    def run(self, settings: Settings, windows: int) -> JointRate:
        """Measure loader and steps together."""
        return self._required().run(settings, windows)

    def open(self, number: int, settings: Settings) -> None:
        """Start a configuration that takes turns with others."""
        self._required().open(number, settings)

    def window(self, number: int) -> JointRate:
        """Measure a window of one that was opened."""
        return self._required().window(number)

    def close(self) -> None:
        """End all that was opened."""
        self._required().close()

    def trace(self, settings: Settings, steps: int, folder: str) -> Counted:
        """Trace steps into a folder, and count what a trace does not show."""
        if self._assignment.node_rank == 0:
            return trace(self._required(), settings, steps, folder)
        with tempfile.TemporaryDirectory(prefix="shardline-traces-") as own:
            counted = trace(self._required(), settings, steps, own)
            names = [name for name in (counted.trace_name, counted.details_name) if name is not None]
            return replace(counted, files={name: (Path(own) / name).read_bytes() for name in names})

    def write_board(self, folder: str, report: ProfileReport) -> None:
        """Write what TensorBoard shows, here where torch is loaded already; the first rank does."""
        if self._rank.is_first:
            write_board(Path(folder), report)

    def _required(self) -> Bench:
        assert self._bench is not None, "hello comes first"
        return self._bench

    def _share_of_machine(self) -> int:
        """Return the part of the global batch that the ranks at hand have: of one machine that stands for several."""
        batch, ranks = self._config.train.global_batch_size, self._rank.ranks
        return max(ranks, -(-batch * ranks // self._assignment.world_size))


def has_batch_norm(model: nn.Module, *, with_frozen: bool = False) -> bool:
    """Whether a BatchNorm of the network takes its statistics from the slot.

    Args:
        model: The network, in training mode.
        with_frozen: Count those too that are frozen: they stay in evaluation mode.
    """
    return any(with_frozen or module.training for module in model.modules() if isinstance(module, _BatchNorm))


def has_layout(model: nn.Module, signature: Signature) -> bool:
    """Whether an input or a weight of the network has the four dimensions that a memory layout is chosen for.

    Args:
        model: The network.
        signature: Its inputs.
    """
    return 4 in {*(len(spec.shape) for spec in signature.inputs.values()), *(each.ndim for each in model.parameters())}


def _has_bf16(device: torch.device) -> bool:
    """Whether the device computes in bf16; many that do not emulate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(False))
    # torch has no public name for what a CPU can; a name that is gone is one that it cannot.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
