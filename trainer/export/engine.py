"""Engines by tensorrt or tensorrt_rtx, which have one API: built from an ONNX graph, opened and run on a GPU.

Here: `build_engine`, `open_engine`, and `open_graph`, which runs the graph itself on the CPU with ONNX Runtime. The
graph carries the precision: networks are strongly typed, and no flag requests another precision. Builds with
tensorrt_rtx need no GPU. Engines have not run on a GPU yet (docs/gpu.md): that part follows the API of tensorrt_rtx
1.7 and the documentation of tensorrt 10 and 11.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from contracts.artifacts import EngineEntry
from contracts.artifacts.signature import BATCH, Signature
from contracts.config.stages import Runtime
from contracts.errors import CheckFailed, ConfigError, ModelError
from contracts.serving import graph_level
from trainer.export.arrays import Array, Arrays
from trainer.export.runtime import INSTALL, Builder, describe_target, gpu_target, version_of
from trainer.predict import program

Runner = Callable[[Mapping[str, Array]], Arrays]
"""Maps inputs by name to outputs by name; the first dimension of all is the batch."""

# Lines of a builder's log that go into an error; the cause is at the end.
_LOG_LINES = 8
_WARM_UP_CALLS, _MOST_CALLS, _TIMED_S = 3, 50, 3.0


# --- the graph, on the CPU --------------------------------------------------------------------------------------------


def open_graph(path: Path, *, threads: int, precision: str = "fp32") -> Runner:
    """Return a function that runs an ONNX file on the CPU with ONNX Runtime, which computes fp16 graphs in fp32.

    Args:
        path: The ONNX file.
        threads: Intra-op threads.
        precision: Of the graph: it decides the level of optimisation (contracts.serving.graph_level).
    """
    return program.open_graph(path, graph_level(precision), threads)


def graph_runtime() -> str:
    """Return package and version that run a graph: `onnxruntime 1.31.1`."""
    return f"onnxruntime {version_of('onnxruntime')}"


# --- building ---------------------------------------------------------------------------------------------------------


def build_engine(
    graph: Path,
    engine: Path,
    *,
    builder: Builder,
    signature: Signature,
    batches: tuple[int, int],
    precision: str,
) -> None:
    """Build an engine from an ONNX file and write it.

    Two builds of one graph may be different bytes (seen with tensorrt_rtx).

    Args:
        graph: The ONNX file.
        engine: File to write.
        builder: Package and target.
        signature: Of the graph, with the ranges of its dimensions besides the batch.
        batches: Tuned and largest batch size; the smallest is 1.
        precision: Of the graph.

    Raises:
        ConfigError: The package does not load.
        ModelError: The builder refuses the graph; its log is in the message.
    """
    tuned, largest = batches
    # The builder silently ignores an invalid profile, and then reports that there is none.
    assert 1 <= tuned <= largest
    api, log = _load_package(builder.module), list[str]()
    logger = _make_logger(api, log)
    factory = api.Builder(logger)
    if not factory:
        raise _refused(graph, builder, log)
    # On TensorRT 10 strong typing is a choice, on 11 the only mode.
    strongly_typed = getattr(api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = factory.create_network(0 if strongly_typed is None else 1 << int(strongly_typed))
    parser = api.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        log.extend(parser.get_error(number).desc() for number in range(parser.num_errors))
        raise _refused(graph, builder, log)
    config = make_config(api, factory, builder, precision)
    profile = factory.create_optimization_profile()
    ranges = {name: (size.min, size.opt, size.max) for name, size in signature.dimensions.items()}
    ranges[BATCH] = 1, tuned, largest
    for name, spec in signature.inputs.items():
        shapes = [
            tuple(size if isinstance(size, int) else ranges[size][place] for size in spec.shape) for place in range(3)
        ]
        profile.set_shape(name, *shapes)
    config.add_optimization_profile(profile)
    plan = factory.build_serialized_network(network, config)
    if plan is None:
        raise _refused(graph, builder, log)
    engine.write_bytes(plan)


def make_config(api: Any, factory: Any, builder: Builder, precision: str) -> Any:
    """Return the configuration of a build.

    TF32 is the default, and is disabled for fp32: it has 10 of fp32's 23 mantissa bits. tensorrt_rtx builds for the
    target, if there is one; tensorrt builds for the GPU of the machine.

    Args:
        api: The builder's package.
        factory: Its `Builder`.
        builder: Package and target.
        precision: Of the graph.
    """
    config = factory.create_builder_config()
    if precision == "fp32":
        config.clear_flag(api.BuilderFlag.TF32)
    if builder.module == "tensorrt_rtx" and builder.target is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(api.ComputeCapability.__members__[builder.target.upper()], 0)
    return config


def _load_package(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"the engine builder {module} does not load: {error}",
            allowed="an installed tensorrt or tensorrt_rtx",
            todo=INSTALL.get(module, f"install {module}"),
        ) from error


def _make_logger(api: Any, log: list[str]) -> Any:
    """Return a logger of `api` that appends errors and warnings to `log` and prints nothing."""

    class Logger(api.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            # The binding's constructor does not go through super().
            api.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= api.ILogger.Severity.WARNING:
                log.append(f"{severity.name}: {message.strip()}")

    return Logger()


def _refused(graph: Path, builder: Builder, log: list[str]) -> ModelError:
    lines = "\n    ".join(log[-_LOG_LINES:]) or "(its log is empty)"
    return ModelError(
        f"{builder.name} builds no engine from {graph.name} for {builder.target}:\n    {lines}",
        allowed="a graph whose operators and types the builder supports",
        todo="see its messages above; another export.precision or architecture may work",
    )


# --- running on a GPU -------------------------------------------------------------------------------------------------


def builder_of(entry: EngineEntry) -> Builder:
    """Return package, version and target that an engine was built with."""
    module, _, version = entry.builder.partition(" ")
    return Builder(cast(Runtime, module), version, entry.target)


def open_engine(path: Path, builder: Builder, signature: Signature) -> Runner:
    """Load an engine on the first GPU and return a function that runs it.

    The function raises CheckFailed for a batch outside of the engine's profile, and where the engine does not run.

    Args:
        path: The engine.
        builder: Package, version and target that it was built with.
        signature: Its inputs and outputs.

    Raises:
        ConfigError: No GPU of that target, no such package or another version of it, or a torch without CUDA.
        CheckFailed: The engine does not load.
    """
    import torch

    if (gpu := gpu_target()) != builder.target or not torch.cuda.is_available():
        raise ConfigError(
            f"{path.name} is for a GPU of {describe_target(builder.target or '')}; this machine has "
            f"{'no GPU' if gpu is None else f'a GPU of {describe_target(gpu)}'}, and torch {torch.__version__}",
            allowed="a machine with a GPU of that compute capability, and torch with CUDA",
            todo="run it there; the ONNX graph beside it runs on any machine (predict.py)",
        )
    api = _load_package(builder.module)
    if (version := version_of(builder.module)) != builder.version:
        raise ConfigError(
            f"{path.name} was built by {builder.name}, installed is {builder.module} {version}",
            allowed="the version that built it: engines do not load in others",
            todo=f"install {builder.module} {builder.version}, or export again",
        )
    log: list[str] = []
    runtime = api.Runtime(_make_logger(api, log))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {builder.name}: {' '.join(log[-3:])}")
    # The context keeps the engine alive, and the engine its runtime (pybind11's keep_alive in TensorRT's binding).
    context = engine.create_execution_context()
    types = {name: getattr(torch, spec.dtype) for name, spec in signature.outputs.items()}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(inputs: Mapping[str, Array]) -> Arrays:
        sizes = {name: array.shape for name, array in inputs.items()}
        try:
            with torch.cuda.stream(stream):
                tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).cuda() for name, array in inputs.items()}
                for name, shape in sizes.items():
                    if not context.set_input_shape(name, shape):
                        raise CheckFailed(f"{path.name} does not take {sizes}: {' '.join(log[-3:])}")
                for name, dtype in types.items():
                    shape = tuple(context.get_tensor_shape(name))
                    tensors[name] = torch.empty(shape, dtype=dtype, device="cuda")
                for name, tensor in tensors.items():
                    context.set_tensor_address(name, tensor.data_ptr())
                if not context.execute_async_v3(stream.cuda_stream):
                    raise CheckFailed(f"{path.name} does not run at {sizes}: {' '.join(log[-3:])}")
                return {name: tensors[name].cpu().numpy() for name in types}
        except RuntimeError as error:  # torch: out of memory, or a kernel failed
            raise CheckFailed(f"{path.name} at {sizes}: {str(error).partition(chr(10))[0]}") from error

    return run


def device_name() -> str:
    """Return name and compute capability of the first GPU: `NVIDIA L4 (sm89)`."""
    import torch

    return f"{torch.cuda.get_device_name()} ({gpu_target()})"


def median_latency(run: Runner, batch: Arrays) -> tuple[float, int]:
    """Return the median milliseconds of a batch, inputs and outputs in main memory, and the number of calls timed.

    At most 50 calls after 3 for warm-up; fewer if they take more than three seconds in total.

    Args:
        run: Runs the model.
        batch: Inputs.
    """
    for _ in range(_WARM_UP_CALLS):
        run(batch)
    times: list[float] = []
    end = time.perf_counter() + _TIMED_S
    while not times or (len(times) < _MOST_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        run(batch)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), len(times)
