"""Builds, runs and times engines on this machine's GPU. Without a GPU it says why an engine did not run.

Here: `open_engine`; `GpuRunner`, what engine_gate.py asks; `judge_engine`, which `shardline verify` asks. Not executed
so far: this project has had no GPU. Written after the API of tensorrt_rtx 1.7 and the documentation of tensorrt 10 and
11; the first run on a GPU is the first test of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from contracts.artifacts import EngineEntry, EngineTensor, Gate, Parity
from contracts.artifacts.signature import Signature
from contracts.config.export import Runtime
from contracts.errors import CheckFailed, ConfigError
from trainer.export.engines import engine_gate
from trainer.export.engines.engine import build_engine, load_api, make_logger
from trainer.export.engines.engine_gate import Ran, Trial, Trials, make_trials
from trainer.export.gates.arrays import Array, Arrays, StoredArrays, pad_batch, store_arrays
from trainer.export.gates.parity import Runner
from trainer.export.gates.proof import Ends
from trainer.export.targets import Builder, gpu_target, gpus_of, version_of

# Calls of an engine that are timed, after as many that are not counted.
_TIMED_CALLS = 50


class NoGpu(ConfigError):
    """An engine was to be opened where it cannot run."""


class BatchRefused(Exception):
    """A batch is outside of the engine's profile."""


def require_gpu(entry: EngineEntry) -> None:
    """See to it that an engine can run here.

    Raises:
        NoGpu: There is no GPU, or another one than the engine was built for.
    """
    here = gpu_target()
    if here == entry.target:
        return
    raise NoGpu(
        f"{entry.name} was built for {entry.target} ({', '.join(gpus_of(entry.target))}); this machine has "
        f"{'no GPU' if here is None else f'a GPU of {here}'}",
        allowed="a machine with a GPU of that compute capability: an engine is compiled for it",
        todo="run it there; here the ONNX graph beside it gives the same answers (predict.py), or build an engine for "
        "this GPU with export.targets",
    )


def open_engine(path: Path, entry: EngineEntry, signature: Signature) -> Runner:
    """Return a function that runs an engine file on the first GPU. Not executed so far (see the module).

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.

    Raises:
        NoGpu: There is no GPU that it was built for.
        ConfigError: The builder package does not load, or is of another version than the one that built it.
        CheckFailed: The engine does not load.
    """
    require_gpu(entry)
    module, _, built_with = entry.builder.partition(" ")
    api = load_api(module)
    if (installed := version_of(module)) != built_with:
        raise ConfigError(
            f"{path.name} was built by {entry.builder}, installed is {module} {installed}",
            allowed="the very version that built it: engines do not load in others",
            todo=f"install {module} {built_with}, or export again",
        )
    import torch

    messages: list[str] = []
    runtime = api.Runtime(make_logger(api, messages))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {entry.builder}: {' '.join(messages[-3:])}")
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    dtypes = _output_types(api, engine, signature)

    def place(inputs: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Put inputs on the device; return where the outputs come."""
        on_device = {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}
        shapes = {name: list(tensor.shape) for name, tensor in on_device.items()}
        for name, tensor in on_device.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise BatchRefused(f"{path.name} refuses {shapes}: {' '.join(messages[-3:])}")
        outputs = {
            name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device="cuda")
            for name, dtype in dtypes.items()
        }
        for name, tensor in {**on_device, **outputs}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        # The copies above are on torch's current stream; the engine's work must come after them.
        stream.wait_stream(torch.cuda.current_stream())
        # Inputs must live as long as they are read.
        run.placed = on_device  # type: ignore[attr-defined]
        return outputs

    def execute() -> None:
        if not context.execute_async_v3(stream.cuda_stream):
            raise CheckFailed(f"{path.name} does not run: {' '.join(messages[-3:])}")
        stream.synchronize()

    def run(inputs: Mapping[str, Array]) -> Arrays:
        outputs = place(inputs)
        execute()
        return {name: tensor.cpu().numpy() for name, tensor in outputs.items()}

    # The runtime and the engine must live as long as the context that the closures hold.
    run.owners = (runtime, engine)  # type: ignore[attr-defined]
    run.place, run.execute = place, execute  # type: ignore[attr-defined]
    return run


def _output_types(api: Any, engine: Any, signature: Signature) -> dict[str, Any]:
    """Return torch's types of an engine's outputs by name: the signature's first, in its order."""
    import torch

    types = {
        "FLOAT": torch.float32,
        "HALF": torch.float16,
        "INT64": torch.int64,
        "INT32": torch.int32,
        "UINT8": torch.uint8,
        "BOOL": torch.bool,
    }
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == api.TensorIOMode.OUTPUT]
    ordered = [
        *(name for name in signature.outputs if name in outputs),
        *(n for n in outputs if n not in signature.outputs),
    ]
    return {name: types[engine.get_tensor_dtype(name).name] for name in ordered}


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
    outputs = []
    for number, trial in enumerate(trials.run):
        with _named(f"{path.name} at {trial.name}"):
            outputs.append(store_arrays(folder / f"{number}", _run_trial(run, trial)))
    accepted = []
    for name, stored in trials.refuse.items():
        try:
            with _named(f"{path.name} at {name}"):
                run(stored.read())
        except BatchRefused:
            continue
        accepted.append(name)
    return Ran(outputs, accepted, torch.cuda.get_device_name())


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
        runners: list[Any] = [open_engine(path, entry, signature) for path, entry in engines]
        # Outputs must live as long as they are written.
        kept = [run.place(inputs.fill(batch)) for run in runners]
        found: list[list[float]] = [[] for _ in kept]
        for _ in range(2 * _TIMED_CALLS):
            for run, times in zip(runners, found, strict=True):
                began = time.perf_counter()
                run.execute()
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
