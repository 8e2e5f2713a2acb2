"""One rank of the probe: `python -m trainer.profiling.service DESCRIPTOR ASSIGNMENT`, started by rank_process.py.

It answers requests over a connection (an inherited descriptor) until that is closed: the measurements of bench.py, by
their names, and what is said or written besides (messages.py). What a configuration does to this process is the point
of it: whatever it raises is an answer, and a process that dies is replaced by the probe.

torch is imported once the process is set up (contracts/process.py: run_process), so nothing here imports it above.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import Settings
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from contracts.errors import DataError, ErrorDocument, UserError
from contracts.own_code import install_code
from contracts.process import end_with_parent, imports_done, run_process
from trainer.launch import Assignment
from trainer.launch.choices import choose_flags
from trainer.profiling.indicators import Counted
from trainer.profiling.measure import Failed, Hello
from trainer.profiling.messages import NotUnderstood, Request, receive, send
from trainer.profiling.rank_process import PROBE_TIMEOUT_S
from trainer.supervise.stop import ignore_stop_signals

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trainer.parallel.process_group import Rank
    from trainer.profiling.bench import Bench

# What comes first: everything that it raises is wrong with all configurations.
HELLO = "hello"
# Epochs of what is measured: no end in sight.
_ENDLESS = 1_000_000


def main(descriptor: int, path: str) -> int:
    """Serve until the other side closes the connection; return the exit code."""
    end_with_parent()
    # The probe decides when this process ends, and kills it.
    ignore_stop_signals()
    connection = Connection(descriptor)
    assignment = Assignment.model_validate_json(Path(path).read_bytes())
    config = RunConfig.model_validate(assignment.config)
    install_code(config.code)

    from trainer.parallel.process_group import process_group

    with process_group(setup_timeout_s=PROBE_TIMEOUT_S) as rank:
        service = Service(assignment, config, rank, Path(path).parent)
        while (request := _receive(connection)) is not None:
            send(connection, _outcome(lambda: service.answer(request), is_hello=request.name == HELLO))
            imports_done()
        # Peers may be gone: nothing is left that a goodbye would be needed for.
        os._exit(0)


def _receive(connection: Connection) -> Request | None:
    try:
        return receive(connection, Request)
    except NotUnderstood as error:
        sys.stderr.write(f"{error}\n")
    except (EOFError, OSError):
        pass
    return None


def _outcome(work: Callable[[], Any], *, is_hello: bool) -> Any:
    """Return what `work` returns, or what became of it: an error of the user's to be told, or Failed."""
    from trainer.profiling.memory import says_out_of_memory

    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever a configuration raises is an answer
        # Damaged data meets every configuration, and a model that cannot be built fits none.
        if isinstance(error, DataError) or (is_hello and isinstance(error, UserError)):
            return ErrorDocument.of(error)
        if says_out_of_memory(error):
            return Failed("out of memory", _first_line(error))
        if isinstance(error, UserError):
            return Failed("failed", error.given)
        traceback.print_exc()
        crashed = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
        return Failed("crashed" if crashed else "failed", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


class Service:
    """The measurements of one rank.

    Args:
        assignment: What it is told, as a rank of training is.
        config: The configuration.
        rank: This process among its peers.
        folder: For traces, until they are told; who started this process removes it.
    """

    def __init__(self, assignment: Assignment, config: RunConfig, rank: Rank, folder: Path) -> None:
        self._assignment, self._config, self._rank, self._folder = assignment, config, rank, folder
        self._bench: Bench | None = None

    def answer(self, request: Request) -> Any:
        """Do what is asked for; after an error nothing is kept that it may have spoilt."""
        own: dict[str, Callable[..., Any]] = {HELLO: self.hello, "trace": self.trace}
        name = request.name
        try:
            return (own[name] if name in own else getattr(self._required(), name))(**request.arguments())
        except Exception:
            if self._bench is not None:
                self._bench.forget()
            raise

    def hello(self) -> Hello:
        """Read the shards, build the network as training would without a profile, and describe the device."""
        import torch

        from trainer.data.training_data import TrainingData
        from trainer.model.numerics import fix_numerics
        from trainer.profiling.bench import Bench

        config, rank = self._config, self._rank
        train = config.train.model_copy(
            update={"epochs": _ENDLESS, "max_steps": None, "global_batch_size": self._share_of_machine()}
        )
        endless = config.model_copy(update={"train": train})
        feed = TrainingData(self._assignment, endless, rank, lambda message: None)
        fix_numerics(self._assignment.threads, rank.device)
        self._bench = Bench(feed, endless, rank)
        stepper = self._bench.prepare(choose_flags(config.train, None))
        # Training would refuse it, after all that is measured here: a last batch of one sample whatever the slot size.
        named = config.parallel.slot_size
        stepper.check_slots_of_one(feed.samples, config.train.global_batch_size if named == "auto" else named, config)
        return Hello(
            kind="cuda" if rank.device.type == "cuda" else "cpu",
            name=torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else "CPU",
            has_bf16=_has_bf16(rank.device),
            memory_limit_bytes=self._bench.memory.limit_bytes(rank.ranks),
            samples=feed.samples,
            compiles=not self._bench.varies,
            has_layout=has_layout(self._bench.stepper.model, feed.task.signature),
            has_images="image" in feed.task.fields.values(),
            has_batch_norm=has_batch_norm(self._bench.stepper.model),
        )

    def trace(self, settings: Settings, steps: int) -> Counted:
        """Trace steps, and count what a trace does not show."""
        from trainer.profiling.tracing import trace

        with tempfile.TemporaryDirectory(dir=self._folder, prefix="traces-") as folder:
            return trace(self._required(), settings, steps, Path(folder))

    def _required(self) -> Bench:
        assert self._bench is not None, "hello comes first"
        return self._bench

    def _share_of_machine(self) -> int:
        """Return the part of the global batch that the ranks at hand have: of one machine that stands for several."""
        batch, ranks = self._config.train.global_batch_size, self._rank.ranks
        return max(ranks, -(-batch * ranks // self._assignment.world_size))


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a BatchNorm of the network takes its statistics from the slot.

    Args:
        model: The network, in training mode; layers that are frozen stay in evaluation mode.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(module.training for module in model.modules() if isinstance(module, _BatchNorm))


def has_layout(model: nn.Module, signature: Signature) -> bool:
    """Whether an input or a weight of the network has the four dimensions that a memory layout is chosen for.

    Args:
        model: The network.
        signature: Its inputs.
    """
    return 4 in {*(len(spec.shape) for spec in signature.inputs.values()), *(each.ndim for each in model.parameters())}


def _has_bf16(device: torch.device) -> bool:
    """Whether the device computes in bf16; many that do not emulate it."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(False))
    # torch has no public name for what a CPU can; a name that is gone is one that it cannot.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


if __name__ == "__main__":
    run_process(lambda: main(int(sys.argv[1]), sys.argv[2]))
