"""Builds, runs and times engines on this machine's GPU.

Here: `GpuRunner`, what engine_gate.py asks; `judge_engine`, which `shardline verify` asks. Not executed so far
(engine_open.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from contracts.artifacts import EngineEntry, EngineTensor, Gate, Parity
from contracts.artifacts.signature import Signature
from contracts.config.stages import Runtime
from contracts.errors import CheckFailed
from trainer.export.engines import engine_gate
from trainer.export.engines.engine import build_engine
from trainer.export.engines.engine_gate import Ran, Trial, Trials, make_trials
from trainer.export.engines.engine_open import BatchRefused, open_engine
from trainer.export.gates.arrays import Arrays, StoredArrays, pad_batch, store_arrays
from trainer.export.gates.parity import Runner
from trainer.export.gates.proof import Ends
from trainer.export.targets import Builder, gpu_target

# Calls of an engine that are timed, after as many that are not counted.
_TIMED_CALLS = 50


@dataclass(frozen=True)
class GpuRunner:
    """The engines of this machine's GPU: each call is a process of its own, since a fault may end it.

    Args:
        builder: Package, version, and the compute capability of this GPU alone.
        signature: Of the model.
        batches: Smallest, tuned and largest batch size.
        step: Calls a function in a process of its own, after the name of the step.
    """

    builder: Builder
    signature: Signature
    batches: tuple[int, int, int]
    step: Callable[..., Any]

    @property
    def name(self) -> str:
        """Package and version that builds."""
        return self.builder.name

    @property
    def target(self) -> str:
        """Compute capability of the GPU."""
        return self.builder.targets[0]

    def build(self, graph: Path, engine: Path, *, precision: str) -> list[EngineTensor]:
        """See `EngineRunner`."""
        least, tuned, most = self.batches
        found: list[EngineTensor] = self.step(
            f"engine {self.target}",
            build_engine,
            graph,
            engine,
            builder=self.builder,
            signature=self.signature,
            opt_batch=tuned,
            max_batch=most,
            min_batch=least,
            precision=precision,
        )
        return found

    def run(self, engine: Path, trials: Trials, folder: Path) -> Ran:
        """See `EngineRunner`."""
        entry = _entry_of(engine, self.builder.name, self.target)
        found: Ran = self.step(
            f"engine {self.target} outputs", run_trials, engine, entry, self.signature, trials, folder
        )
        return found

    def time(self, engines: Sequence[Path], inputs: StoredArrays, batch: int) -> list[float]:
        """See `EngineRunner`."""
        entries = [_entry_of(engine, self.builder.name, self.target) for engine in engines]
        pairs = list(zip(engines, entries, strict=True))
        found: list[float] = self.step("engine speed", time_engines, pairs, self.signature, inputs, batch)
        return found


def runner_here(
    builder: Builder, signature: Signature, batches: tuple[int, int, int], step: Callable[..., Any]
) -> GpuRunner | None:
    """Return what builds and runs engines for this machine's GPU; None where there is none that they are for.

    Args:
        builder: Package, and all targets.
        signature: Of the model.
        batches: Smallest, tuned and largest batch size.
        step: As `GpuRunner` takes it.
    """
    here = gpu_target()
    if here is None or here not in builder.targets:
        return None
    return GpuRunner(Builder(builder.module, builder.version, (here,)), signature, batches, step)


def run_trials(path: Path, entry: EngineEntry, signature: Signature, trials: Trials, folder: Path) -> Ran:
    """Run an engine at each trial, and see whether it refuses what it must.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        trials: What it runs and refuses.
        folder: For the outputs.

    Raises:
        NoGpu: As `open_engine`.
        CheckFailed: The engine does not load, or does not run a trial.
    """
    import torch

    run = open_engine(path, entry, signature)
    return drive_trials(run, path.name, trials, folder, torch.cuda.get_device_name())


def drive_trials(run: Runner, name: str, trials: Trials, folder: Path, device: str) -> Ran:
    """Run what is opened at each trial; `run` raises BatchRefused for what is outside of its profile.

    Args:
        run: The engine.
        name: Its name in messages.
        trials: What it runs and refuses.
        folder: For the outputs.
        device: Where it runs, in words.

    Raises:
        CheckFailed: A trial does not run.
    """
    outputs = []
    for number, trial in enumerate(trials.run):
        with _named(f"{name} at {trial.name}"):
            outputs.append(store_arrays(folder / f"{number}", _run_trial(run, trial)))
    accepted = []
    for what, stored in trials.refuse.items():
        try:
            with _named(f"{name} at {what}"):
                run(stored.read())
        except BatchRefused:
            continue
        accepted.append(what)
    return Ran(outputs, accepted, device)


def _run_trial(run: Runner, trial: Trial) -> Iterator[Arrays]:
    for batch in trial.inputs.batches(trial.batch, most=trial.most):
        # The batches of a part's end too are of this size: an engine may take no smaller ones.
        number = len(next(iter(batch.values())))
        yield {name: array[:number] for name, array in run(pad_batch(batch, trial.batch)).items()}


def time_engines(
    engines: Sequence[tuple[Path, EngineEntry]], signature: Signature, inputs: StoredArrays, batch: int
) -> list[float]:
    """Return milliseconds of a batch by engine: the median of `_TIMED_CALLS` calls, in turns, inputs on the device.

    Raises:
        CheckFailed: An engine does not load, or does not run.
    """
    with _named(f"a batch of {batch}"):
        opened = [open_engine(path, entry, signature) for path, entry in engines]
        return median_ms([engine.place(inputs.fill(batch)).execute for engine in opened])


def median_ms(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return milliseconds of each call, which takes turns with the others: the median behind as many for warm-up."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(2 * _TIMED_CALLS):
        for call, times in zip(calls, found, strict=True):
            began = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - began))
    return [statistics.median(times[_TIMED_CALLS:]) for times in found]


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turn what torch raises on a GPU (no memory is left, a kernel has failed) into the answer of a check."""
    try:
        yield
    except RuntimeError as error:
        raise CheckFailed(f"{what}: {str(error).partition(chr(10))[0]}") from error


def _entry_of(engine: Path, builder: str, target: str) -> EngineEntry:
    """Return as much of an entry as opening an engine needs, of one that no manifest names."""
    return EngineEntry.model_construct(name=engine.name, builder=builder, target=target)


def judge_engine(
    path: Path,
    entry: EngineEntry,
    signature: Signature,
    inputs: StoredArrays,
    reference: StoredArrays,
    *,
    ends: Ends | None = None,
    work: Path,
    run: Callable[..., Any],
) -> tuple[Gate, Parity]:
    """Hold an engine of a finished export against the reference at each batch size and end of its profile.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        inputs: What the reference was given.
        reference: Outputs of the fp32 graph that agrees with torch.
        ends: The same at the ends of dimensions that vary.
        work: A folder for files in between.
        run: Calls a function in a process of its own, after the name of the step.
    """
    batches = (entry.min_batch, entry.opt_batch, entry.max_batch)
    trials = make_trials(inputs, reference, ends, batches, work)
    module, _, built_with = entry.builder.partition(" ")
    # Only these two build engines.
    package = cast(Runtime, module)
    runner = GpuRunner(Builder(package, built_with, (entry.target,)), signature, batches, run)
    return engine_gate.judge_engine(runner, path, trials, signature, precision=entry.precision, folder=work)
