"""Hooks of tests in ranks: wrap methods of training from outside, so that the hot path holds nothing of them.

trainer/worker.py calls `install_hooks` where SHARDLINE_HOOKS names it. Without SHARDLINE_PAUSE_AT and SHARDLINE_TRACE
nothing is wrapped. `PHASES` names the method behind each moment
(tests/support/pauses.py); a test fails when one of them is no more, or a phase is never reached in a training.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from tests.support.pauses import PAUSE_AT, reached
from tests.support.trace import ENVIRONMENT as TRACE
from tests.support.trace import Trace

# Size of DDP's buckets in MiB: the networks of tests would fill one.
BUCKET_MB = "SHARDLINE_BUCKET_MB"
PHASES = {
    "start-up": ("before", "trainer.train", "Training.__init__"),
    "restore": ("before", "trainer.step", "Stepper.load"),
    "data": ("before", "trainer.log", "Reporting.count"),
    "forward": ("before", "trainer.step", "Stepper._slot_loss"),
    "backward": ("after", "trainer.step", "Stepper._slot_loss"),
    "optimizer": ("before", "trainer.step", "step_optimizer"),
    "staging": ("before", "trainer.checkpoint.staging", "HostBuffer.stage"),
    "writing": ("before", "trainer.checkpoint.manager", "CheckpointManager._write_files"),
    "before-manifest": ("before", "trainer.checkpoint.manager", "CheckpointManager._commit"),
    "after-manifest": ("after", "trainer.checkpoint.manager", "CheckpointManager._commit"),
    "retention": ("before", "trainer.checkpoint.manager", "CheckpointManager._retain"),
    "evaluation": ("before", "trainer.train", "evaluate"),
    "epoch-boundary": ("before", "trainer.train", "Training._complete_epoch"),
}


def install_hooks(rank: int, attempt: str) -> None:
    """Wrap what the environment asks for; once in the process of a rank, before training begins.

    Args:
        rank: Of this process.
        attempt: Id of the attempt, for the names of trace files.
    """
    if os.environ.get(PAUSE_AT):
        for phase, (when, module, name) in PHASES.items():
            _wrap(module, name, functools.partial(_reach, phase, when == "before"))
    if size := os.environ.get(BUCKET_MB):
        importlib.import_module("trainer.parallel.spread").BUCKET_MB = float(size)  # type: ignore[attr-defined]
    if folder := os.environ.get(TRACE):
        trace = Trace(Path(folder), rank, attempt)
        _wrap("trainer.step", "Stepper.compute", functools.partial(_trace_slot, trace))
        _wrap("trainer.step", "Stepper.update", functools.partial(_trace_step, trace))


def find(module: str, name: str) -> tuple[Any, str, Any]:
    """Return the owner of a function or method, its attribute's name, and the function."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, last, getattr(owner, last)


def _wrap(module: str, name: str, around: Any) -> None:
    owner, attribute, original = find(module, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, *args, **kwargs), args)

    wrapped.is_hook = True  # type: ignore[attr-defined]
    setattr(owner, attribute, wrapped)


def _reach(phase: str, before: bool, call: Any, args: tuple[Any, ...]) -> Any:
    if before:
        reached(phase)
    result = call()
    if not before:
        reached(phase)
    return result


def _trace_slot(trace: Trace, call: Any, args: tuple[Any, ...]) -> Any:
    loss = call()
    _, slot, *_ = args
    trace.add(slot.request, loss)
    return loss


def _trace_step(trace: Trace, call: Any, args: tuple[Any, ...]) -> Any:
    left_out = call()
    trace.step_taken()
    return left_out
