"""From an ONNX graph to an engine, with tensorrt or tensorrt_rtx: one code path for both.

Here: `build_engine`. Run by trainer/export/task.py. No precision flag is set anywhere: the graph carries precision, and
networks are strongly typed (TensorRT 11 knows nothing else). An engine is never loaded here, which needs a GPU
(engine_open.py); so what is to be known about it is taken from the build.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Literal

from contracts.artifacts import EngineTensor
from contracts.artifacts.signature import BATCH, Signature
from contracts.errors import ConfigError, ModelError
from contracts.serving import TENSORRT_RTX
from trainer.export.targets import EXTRAS, Builder

MIN_BATCH = 1
# Lines of the builder's log that go into an error; the cause is at the end.
_LOG_LINES = 8


def check_profile(min_batch: int, opt_batch: int, max_batch: int) -> None:
    """Refuse batch sizes that are not ordered.

    The builder itself ignores such a profile without a word and then says that there is none.

    Raises:
        ConfigError: Not 1 <= min <= opt <= max.
    """
    if not 1 <= min_batch <= opt_batch <= max_batch:
        raise ConfigError(
            f"batch sizes min {min_batch}, opt {opt_batch}, max {max_batch}",
            allowed="1 <= min <= opt <= max",
            todo="correct export.max_batch",
        )


def build_engine(
    graph: Path,
    target: Path,
    *,
    builder: Builder,
    signature: Signature,
    opt_batch: int,
    max_batch: int,
    min_batch: int = MIN_BATCH,
    precision: str = "",
) -> list[EngineTensor]:
    """Build an engine from an ONNX file and write it.

    Two builds of one graph need not be equal bytes (seen with tensorrt_rtx): lineage hangs on the graph's hash.

    Args:
        graph: The ONNX file.
        target: File to write.
        builder: Package and targets.
        signature: Inputs of the graph, and the ranges of its dimensions besides the batch.
        opt_batch: Batch size to tune for.
        max_batch: Largest batch size.
        min_batch: Smallest batch size.
        precision: Of the graph: in an fp32 engine TF32, which is on by default, is cleared. It has 10 of fp32's 23 bits
            and would not keep to fp32's limits.

    Returns:
        What the engine takes and gives: nobody can ask the file without a GPU.

    Raises:
        ConfigError: The batch sizes are not ordered, or the builder package does not load.
        ModelError: The builder refuses the graph; its log is in the message.
    """
    check_profile(min_batch, opt_batch, max_batch)
    api = load_api(builder.module)
    messages: list[str] = []
    logger = make_logger(api, messages)
    factory = api.Builder(logger)
    if not factory:
        raise _refusal(graph, builder, messages)
    network = factory.create_network(_network_flags(api))
    parser = api.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        messages.extend(parser.get_error(number).desc() for number in range(parser.num_errors))
        raise _refusal(graph, builder, messages)
    config = make_config(api, factory, builder, precision)
    profile = factory.create_optimization_profile()
    for name, shapes in profile_shapes(signature, (min_batch, opt_batch, max_batch)).items():
        profile.set_shape(name, *shapes)
    config.add_optimization_profile(profile)
    plan = factory.build_serialized_network(network, config)
    if plan is None:
        raise _refusal(graph, builder, messages)
    tensors = _describe(network)
    target.write_bytes(plan)
    return tensors


def make_config(api: Any, factory: Any, builder: Builder, precision: str) -> Any:
    """Return the builder's configuration, as `build_engine` takes it.

    Args:
        api: The builder package.
        factory: Its builder.
        builder: Package and targets.
        precision: Of the graph.
    """
    config = factory.create_builder_config()
    if precision == "fp32":
        config.clear_flag(api.BuilderFlag.TF32)
    if builder.module == TENSORRT_RTX:
        _set_targets(api, config, builder)
    return config


Batches = tuple[int, int, int]
"""Smallest, tuned and largest batch size."""


def profile_shapes(signature: Signature, batches: Batches) -> dict[str, list[tuple[int, ...]]]:
    """Return the smallest, the tuned and the largest shape of each input."""
    ranges = {name: (found.min, found.opt, found.max) for name, found in signature.dimensions.items()}
    ranges[BATCH] = batches
    return {
        name: [tuple(size if isinstance(size, int) else ranges[size][end] for size in spec.shape) for end in range(3)]
        for name, spec in signature.inputs.items()
    }


def _describe(network: Any) -> list[EngineTensor]:
    def describe(mode: Literal["input", "output"], tensor: Any) -> EngineTensor:
        shape = [int(size) for size in tensor.shape]
        return EngineTensor(mode=mode, name=tensor.name, dtype=tensor.dtype.name.lower(), shape=shape)

    inputs = [describe("input", network.get_input(number)) for number in range(network.num_inputs)]
    return inputs + [describe("output", network.get_output(number)) for number in range(network.num_outputs)]


def load_api(module: str) -> Any:
    """Import a builder package; both have the same API.

    Raises:
        ConfigError: It is not installed, or its libraries do not load.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"the engine builder {module} does not load: {error}",
            allowed="an installed tensorrt or tensorrt_rtx",
            todo=f'pip install "shardline[{EXTRAS.get(module, "rtx")}]"',
        ) from error


def make_logger(api: Any, messages: list[str]) -> Any:
    """Return a logger of `api` that appends errors and warnings to `messages` and prints nothing."""

    class Collector(api.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            # The binding's constructor does not go through super().
            api.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= api.ILogger.Severity.WARNING:
                messages.append(f"{severity.name}: {message.strip()}")

    return Collector()


def _network_flags(api: Any) -> int:
    """Strong typing is a choice on TensorRT 10, the only mode on 11, and may be gone from the enum after it."""
    flag = getattr(api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _set_targets(api: Any, config: Any, builder: Builder) -> None:
    """Name the GPUs to compile for: without them the builder takes the present one, and fails when there is none."""
    config.num_compute_capabilities = len(builder.targets)
    for place, name in enumerate(builder.targets):
        capability = getattr(api.ComputeCapability, name.upper(), None)
        if capability is None:
            known = [item.lower() for item in api.ComputeCapability.__members__ if item.startswith("SM")]
            raise ConfigError(
                f"{builder.name} cannot build for {name}", allowed=", ".join(known), todo="choose another target"
            )
        config.set_compute_capability(capability, place)


def _refusal(graph: Path, builder: Builder, messages: list[str]) -> ModelError:
    log = "\n    ".join(messages[-_LOG_LINES:]) or "(it said nothing)"
    return ModelError(
        f"{builder.name} builds no engine from {graph.name} for {'+'.join(builder.targets)}:\n    {log}",
        allowed="a graph whose operators and types the builder supports",
        todo="see its messages above; another export.precision or architecture may work",
    )
