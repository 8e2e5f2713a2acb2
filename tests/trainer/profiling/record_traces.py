"""Records the traces in traces/: real steps of small networks under torch's profiler, each with one thing wrong.

    PYTHONPATH=. python tests/trainer/profiling/record_traces.py [NAME ...]

They are committed, so that tests read what kineto writes without depending on what else the machine does; record them
again when torch changes. The host's name, the user's and paths are taken out as they are from every trace.

    steady       nothing is wrong: convolutions, data at hand
    starved      the loader takes longer than the computing
    copying      the network turns its images about between layers
    exchange     two gloo ranks average far more parameters than their batch is worth
    straggler    of two gloo ranks, the second has more to compute
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, Dataset

from trainer.profiling.trace import LOADER, SLOT, UPDATE, annotate, record

FOLDER = Path(__file__).parent / "traces"
STEPS = 3
# Steps before those of the trace.
WARMUP = 2
SLOT_SIZE = 8

Sample = tuple[torch.Tensor, torch.Tensor]


class Pictures(Dataset[Sample]):
    """Random pictures that take a while to get."""

    def __init__(self, size: int, delay_s: float) -> None:
        self._size, self._delay_s = size, delay_s

    def __len__(self) -> int:
        return SLOT_SIZE * (STEPS + WARMUP)

    def __getitem__(self, place: int) -> Sample:
        time.sleep(self._delay_s)
        return torch.randn(3, self._size, self._size), torch.tensor(place % 10)


class Turning(nn.Module):
    """Lays its input out anew, as a network does that mixes layouts."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images as they are, after four copies."""
        for _ in range(2):
            images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()
        return images


def convolutions(width: int = 24, between: type[nn.Module] = nn.Identity) -> nn.Module:
    """Return a small network over pictures."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        between(),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        between(),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def wide(width: int = 1500) -> nn.Module:
    """Return a network of many parameters that computes little on a small batch."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, width), nn.ReLU(), nn.Linear(width, 10))


def trace(
    path: Path, model: nn.Module, *, size: int = 32, delay_s: float = 0.0, passes: int = 1, rank: int = 0
) -> None:
    """Trace steps of a model.

    Args:
        path: Trace to write, .json.gz.
        model: The model.
        size: Side of its pictures.
        delay_s: Seconds that a picture takes to get.
        passes: Forward passes per step.
        rank: Number of the rank.
    """
    alone: nn.Module = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches: Iterator[list[torch.Tensor]] = iter(DataLoader(Pictures(size, delay_s), batch_size=SLOT_SIZE))

    def take_step() -> None:
        with annotate(LOADER):
            images, labels = next(batches)
        with annotate(SLOT):
            # Not through DistributedDataParallel: the other rank computes it once.
            for _ in range(passes - 1):
                with torch.no_grad():
                    alone(images)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
        with annotate(UPDATE):
            optimizer.step()
            optimizer.zero_grad()

    # Buckets of gradients and the optimizer's state are made in the first two steps.
    take_step()
    record(path, take_step, steps=STEPS, rank=rank, cuda=False)


def in_two_ranks(name: str, make: Callable[[], nn.Module], passes_of_second: int = 1) -> None:
    """Trace steps of two ranks that average gradients over gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_rank, args=(name, make, port, passes_of_second), nprocs=2)  # type: ignore[no-untyped-call]


def _rank(rank: int, name: str, make: Callable[[], nn.Module], port: int, passes_of_second: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(make())
    trace(FOLDER / f"{name}-{rank}.json.gz", model, size=16, passes=passes_of_second if rank else 1, rank=rank)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Record all traces, or those named."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    recordings: dict[str, Callable[[], None]] = {
        "steady": lambda: trace(FOLDER / "steady.json.gz", convolutions()),
        "starved": lambda: trace(FOLDER / "starved.json.gz", convolutions(), delay_s=0.01),
        "copying": lambda: trace(FOLDER / "copying.json.gz", convolutions(between=Turning), size=64),
        "exchange": lambda: in_two_ranks("exchange", wide),
        "straggler": lambda: in_two_ranks("straggler", convolutions, passes_of_second=8),
    }
    for name in sys.argv[1:] or recordings:
        recordings[name]()


if __name__ == "__main__":
    main()
