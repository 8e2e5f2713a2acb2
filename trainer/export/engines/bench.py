"""How long a batch takes: the engine, torch eager, torch.compile and ONNX Runtime on one device, in one run.

Here: `measure_latency`, called by trainer/export/making.py in a process of its own (`export.bench`). Inputs
lie on the device before the clock starts, and it stops when the device is done; they are samples of the test split.
All runners take turns (timing.py).

Not executed so far: everything for a GPU (bench_gpu.py). Nothing here judges a figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from contracts.artifacts import EngineEntry
from contracts.artifacts.export import Latency
from contracts.artifacts.signature import Signature
from trainer.export.engines.timing import (
    BUDGET_S,
    Call,
    Queued,
    TooLong,
    describe,
    measure_rate,
    own_compile_cache,
    time_calls,
    time_limit,
)
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.sessions import open_session

if TYPE_CHECKING:
    import torch
    from torch import nn

# On a CPU one size takes about half a minute to compile; a GPU's max-autotune some minutes for each.
COMPILE_LIMIT_S = {"cpu": 120.0, "cuda": 300.0}


class Bench(NamedTuple):
    """What was measured, and what was not."""

    latency: list[Latency]
    left_out: dict[str, str]
    """Reason by runner."""


@dataclass
class Device:
    """Where everything runs."""

    kind: str
    """cpu or cuda."""
    name: str
    threads: int
    dtype: torch.dtype
    """What torch computes in."""
    precision: str
    """The same, as the export calls it."""


@dataclass
class Runner:
    """Something that runs batches."""

    name: str
    precision: str
    prepare: Callable[[int], Call]
    """From a batch size to a call that runs one such batch and returns when it is done. What either raises is why this
    runner is left out."""
    batches: Sequence[int] | None = None
    """None: all that are measured."""
    errors: dict[int, str] = field(default_factory=dict)
    is_open: bool = False
    """Whether it has run: the first batch size pays for loading."""


def measure_latency(
    graphs: Mapping[str, Path],
    engines: Sequence[tuple[Path, EngineEntry]],
    *,
    precision: str,
    signature: Signature,
    build_model: Callable[[], nn.Module],
    weights: Path,
    inputs: StoredArrays,
    batches: Sequence[int],
    threads: int,
    budget_s: float = BUDGET_S,
    compile_limit_s: float | None = None,
) -> Bench:
    """Time everything that runs here, with and without a GPU.

    To be called in a process of its own: it sets torch's threads, and takes SIGALRM.

    Args:
        graphs: ONNX files by precision.
        engines: Engines and what the manifest says of them; those for other GPUs are left out.
        precision: What ships. torch computes in it on a GPU (fp16 for int8), and in fp32 on a CPU.
        signature: Inputs and outputs of the model.
        build_model: Builds the network.
        weights: A safetensors file of all its parameters and buffers.
        inputs: Samples of which batches are made.
        batches: Batch sizes.
        threads: Intra-op threads on a CPU.
        budget_s: Seconds for one runner at one batch size.
        compile_limit_s: Seconds that torch.compile may take for one batch size; None: by device.

    Returns:
        Milliseconds of a batch and samples a second by runner and batch size, and what was left out, with the reason.
    """
    import torch

    torch.set_num_threads(threads)
    device = _find_device(precision, threads)
    limit_s = COMPILE_LIMIT_S[device.kind] if compile_limit_s is None else compile_limit_s
    network = _load_network(build_model, weights, device)
    eager = _torch_runner(f"torch eager {torch.__version__}", network, signature, inputs, device)
    compiled = _compiled_runner(network, signature, inputs, device, limit_s, batches)
    runners = [eager, compiled]
    for name, path in graphs.items():
        runners += _onnx_runners(path, name, inputs, device)
    left_out = {}
    for path, entry in engines:
        opened, reason = _engine_runners(path, entry, signature, inputs, device)
        runners += opened
        if reason:
            left_out[f"engine {entry.target}"] = reason
    found = []
    with own_compile_cache():
        for batch in sorted(set(batches)):
            found += _measure_batch(runners, batch, device, budget_s)
    for runner in runners:
        if runner.batches is not None and (rest := sorted(set(batches) - set(runner.batches))):
            sizes = ", ".join(map(str, rest))
            left_out[f"{runner.name}, batch {sizes}"] = "compiling one size takes about as long as all else here"
        for batch, reason in runner.errors.items():
            left_out[f"{runner.name}, {runner.precision}, batch {batch}"] = reason
    return Bench(found, left_out)


def _measure_batch(runners: Sequence[Runner], batch: int, device: Device, budget_s: float) -> list[Latency]:
    calls: dict[int, Call] = {}
    cold: dict[int, float] = {}
    for place, runner in enumerate(runners):
        if runner.batches is not None and batch not in runner.batches:
            continue
        began = time.perf_counter()
        try:
            call = runner.prepare(batch)
            call()
        except (Exception, TooLong) as reason:  # noqa: BLE001 - compilers raise what they like; it is said, and the rest goes on
            runner.errors[batch] = _in_words(reason)
        else:
            calls[place], cold[place] = call, time.perf_counter() - began
    times, failed = time_calls(calls, budget_s=budget_s)
    for place, error in failed.items():
        runners[place].errors[batch] = _in_words(error)
    found = []
    for place, seconds in times.items():
        runner, call = runners[place], calls[place]
        one = describe(runner.name, runner.precision, device.name, batch, seconds)
        if isinstance(call, Queued):
            one = one.model_copy(update={"images_per_s": round(measure_rate(call, seconds, budget_s) * batch, 2)})
        if not runner.is_open:
            one, runner.is_open = one.model_copy(update={"cold_s": round(cold[place], 3)}), True
        found.append(one)
    return found


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _find_device(precision: str, threads: int) -> Device:
    import torch

    if not torch.cuda.is_available():
        # torch on a CPU is not made for fp16.
        return Device("cpu", f"cpu, {threads} threads", threads, torch.float32, "fp32")
    # Of int8 too: what is not int8 there is fp16.
    dtype, computes = (torch.float32, "fp32") if precision == "fp32" else (torch.float16, "fp16")
    return Device("cuda", torch.cuda.get_device_name(), threads, dtype, computes)


def _load_network(build_model: Callable[[], nn.Module], weights: Path, device: Device) -> nn.Module:
    import torch

    from trainer.weights.save import load_saved

    network = build_model()
    load_saved(network, weights)
    network = network.eval().to(device.kind, device.dtype)
    if device.kind == "cuda":
        # What torch is fastest with on a GPU: an engine chooses layouts and kernels as well.
        torch.backends.cudnn.benchmark = True
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _torch_runner(name: str, network: Any, signature: Signature, inputs: StoredArrays, device: Device) -> Runner:
    import torch

    def prepare(batch: int) -> Call:
        arrays = inputs.fill(batch)
        given = [torch.from_numpy(arrays[name]).to(device.kind) for name in signature.inputs]
        given = [tensor.to(device.dtype) if tensor.is_floating_point() else tensor for tensor in given]

        def call() -> None:
            with torch.inference_mode():
                network(*given)

        if device.kind != "cuda":
            return call
        given = [one.to(memory_format=torch.channels_last) if one.ndim == 4 else one for one in given]
        return Queued(call, torch.cuda.synchronize)

    return Runner(name, device.precision, prepare)


def _compiled_runner(
    network: Any,
    signature: Signature,
    inputs: StoredArrays,
    device: Device,
    limit_s: float,
    batches: Sequence[int],
) -> Runner:
    import torch

    # A graph for each size: one for all sizes is slower, and no engine's rival.
    mode = "max-autotune" if device.kind == "cuda" else "default"
    compiled = torch.compile(network, dynamic=False, mode=mode)
    runner = _torch_runner(f"torch.compile {torch.__version__}", compiled, signature, inputs, device)
    prepare = runner.prepare

    def prepare_and_compile(batch: int) -> Call:
        call = prepare(batch)
        with time_limit(limit_s):
            call()
        return call

    runner.prepare = prepare_and_compile
    runner.batches = None if device.kind == "cuda" else [min(batches)]
    return runner


def _onnx_runners(path: Path, precision: str, inputs: StoredArrays, device: Device) -> list[Runner]:
    """Return runners of an ONNX file: on a GPU with each provider that is made for one."""
    import onnxruntime  # type: ignore[import-untyped]

    if device.kind == "cuda":
        from trainer.export.engines.bench_gpu import PROVIDERS, prepare_onnx

        name = f"onnxruntime {onnxruntime.__version__}"
        return [Runner(f"{name} {one}", precision, prepare_onnx(path, inputs, one)) for one in PROVIDERS]
    sessions: list[Any] = []

    def prepare(batch: int) -> Call:
        if not sessions:
            sessions.append(open_session(path, threads=device.threads))
        given = inputs.fill(batch)
        return lambda: sessions[0].run(None, given)

    return [Runner(f"onnxruntime {onnxruntime.__version__} CPUExecutionProvider", precision, prepare)]


def _engine_runners(
    path: Path, entry: EngineEntry, signature: Signature, inputs: StoredArrays, device: Device
) -> tuple[list[Runner], str]:
    """Return runners of an engine, without and with a CUDA graph, or why there are none."""
    from trainer.export.targets import gpu_target

    if device.kind != "cuda":
        return [], "not run: no GPU"
    if (here := gpu_target()) != entry.target:
        return [], f"not run: this machine's GPU is {here}"
    from trainer.export.engines.bench_gpu import prepare_engine

    runners = []
    for name, with_graph in ((f"engine {entry.builder}", False), (f"engine {entry.builder}, CUDA graph", True)):
        prepare = prepare_engine(path, entry, signature, inputs, with_graph=with_graph)
        runners.append(Runner(name, entry.precision, prepare))
    return runners, ""
