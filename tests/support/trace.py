"""What a rank trained on, slot by slot, for tests; off unless the environment asks for it.

With SHARDLINE_TRACE=FOLDER each rank appends a line for every slot to a file of its own in FOLDER, once the optimizer
step that the slot belongs to was taken. A step that was taken, lost and taken again has lines of both times; those of
the later process count (`read_trace`). Reading the loss waits for the device, so this is nothing for every day.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trainer.data.cursor import SlotRequest

ENVIRONMENT = "SHARDLINE_TRACE"


class Trace:
    """Writes the lines of one rank."""

    def __init__(self, folder: Path, rank: int, attempt: str) -> None:
        # A name that sorts by the time at which the process came to this.
        self._path = folder / f"{time.time_ns():020d}.{attempt}.rank{rank}.jsonl"
        self._lines: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, request: SlotRequest, loss: torch.Tensor) -> None:
        """Take in a slot.

        Args:
            request: The slot.
            loss: Its loss, summed over its samples; scalar.
        """
        if request.counts:
            line = {"step": request.step, "epoch": request.epoch, "slot": request.slot, "samples": request.samples}
            self._lines.append(json.dumps({**line, "loss": float(loss), "time": time.time()}) + "\n")

    def step_taken(self) -> None:
        """Write the slots of an optimizer step that was taken."""
        if self._lines:
            # One write to a file opened for appending: a kill leaves whole lines of whole steps, or none.
            with self._path.open("ab", buffering=0) as stream:
                stream.write("".join(self._lines).encode())
            self._lines.clear()


@dataclass
class TracedStep:
    """One optimizer step, over all ranks."""

    epoch: int
    samples: list[int]
    """Places of its samples in the split, in the order of slots."""
    loss: float
    """Mean over its samples."""
    times_taken: int
    """More than 1: it was lost and taken again."""


def read_trace(folder: Path) -> dict[int, TracedStep]:
    """Return the steps of a training by number, each as it was taken last."""
    slots: dict[int, dict[int, tuple[int, list[int], float]]] = {}
    times: dict[tuple[int, int], int] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            step, slot = int(entry["step"]), int(entry["slot"])
            slots.setdefault(step, {})[slot] = (int(entry["epoch"]), entry["samples"], float(entry["loss"]))
            times[step, slot] = times.get((step, slot), 0) + 1
    steps = {}
    for step, by_slot in sorted(slots.items()):
        parts = [by_slot[slot] for slot in sorted(by_slot)]
        samples = [sample for _, of_slot, _ in parts for sample in of_slot]
        loss = sum(part[2] for part in parts) / len(samples)
        taken = max(times[step, slot] for slot in by_slot)
        steps[step] = TracedStep(parts[0][0], samples, loss, taken)
    return steps
