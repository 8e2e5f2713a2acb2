"""config.pbtxt: what Triton Inference Server is told of a model, by its own message (of tritonclient).

Here: `ServedModel`, `make_config` and `config_as_text`. What is known of Triton's levels, keys and
releases stands in contracts/serving.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.artifacts import Signature
from contracts.config.stages import Runtime
from contracts.errors import ConfigError
from contracts.serving import (
    CACHE_KEYS,
    GRAPH_LEVELS,
    ONNXRUNTIME_TENSORRT,
    PROFILE_KEYS,
    TENSORRT,
    TENSORRT_RTX,
    graph_level,
)
from trainer.export.engines.engine import profile_shapes

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig  # type: ignore[import-untyped]

LABELS_NAME = "labels.txt"

# How long a request may wait for others to make a batch: the value of Triton's documentation of dynamic batching, and
# little beside a batch on any GPU. `perf_analyzer` finds a better one for a load that is known.
QUEUE_DELAY_US = 100

_BACKENDS = {TENSORRT: "tensorrt", ONNXRUNTIME_TENSORRT: "onnxruntime", TENSORRT_RTX: "onnxruntime"}
# A plan needs a GPU, and so do accelerators, without which ONNX Runtime would fall back to the CPU in silence. Where
# there is none, ONNX Runtime takes what the machine has.
_INSTANCES = {TENSORRT: "KIND_GPU", ONNXRUNTIME_TENSORRT: "KIND_GPU", TENSORRT_RTX: "KIND_AUTO"}
# Triton's types by those of a signature.
_TYPES = {"float32": "TYPE_FP32", "int64": "TYPE_INT64", "int32": "TYPE_INT32"}
_TYPES |= {"uint8": "TYPE_UINT8", "bool": "TYPE_BOOL"}


@dataclass(frozen=True)
class ServedModel:
    """A model as Triton is told of it."""

    name: str
    runtime: Runtime
    precision: str
    sha256: str
    """Of the file."""
    signature: Signature
    batches: tuple[int, int, int]
    """Smallest, tuned and largest batch size."""
    has_labels: bool
    """Whether outputs are scores of classes, whose names are in a file."""

    @property
    def level(self) -> int | None:
        """Number of ONNX Runtime's optimisation level for Triton; None of a plan."""
        return None if self.runtime == TENSORRT else GRAPH_LEVELS[graph_level(self.precision)]


def make_config(model: ServedModel) -> ModelConfig:
    """Return Triton's configuration of a model."""
    message = triton_messages()
    _, opt_batch, max_batch = model.batches
    config = message.ModelConfig(name=model.name, backend=_BACKENDS[model.runtime], max_batch_size=max_batch)
    signature, labels = model.signature, LABELS_NAME if model.has_labels else ""
    for name, spec in signature.inputs.items():
        _set_dims(config.input.add(name=name, data_type=_TYPES[spec.dtype]), spec.shape)
    for name, spec in signature.outputs.items():
        _set_dims(config.output.add(name=name, data_type=_TYPES[spec.dtype], label_filename=labels), spec.shape)
    config.dynamic_batching.preferred_batch_size.append(opt_batch)
    config.dynamic_batching.max_queue_delay_microseconds = QUEUE_DELAY_US
    config.instance_group.add(kind=_INSTANCES[model.runtime], count=1)
    if model.level is not None:
        config.optimization.graph.level = model.level
    if model.runtime == ONNXRUNTIME_TENSORRT:
        accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
        for key, value in _accelerate(model).items():
            accelerator.parameters[key] = value
    for batch in sorted({1, opt_batch}):
        # The model counts as ready only then: what is built at a first request is built before there is one.
        warmup = config.model_warmup.add(name=f"batch of {batch}", batch_size=batch)
        for name, spec in signature.inputs.items():
            warm = warmup.inputs[name]
            warm.data_type = message.DataType.Value(_TYPES[spec.dtype])
            # Zeros where noise may be outside of a vocabulary.
            if spec.dtype == "float32":
                warm.random_data = True
            else:
                warm.zero_data = True
            sizes = [signature.dimensions[size].opt if isinstance(size, str) else size for size in spec.shape[1:]]
            warm.dims.extend(sizes or [1])
    return config


def _set_dims(tensor: Any, shape: Sequence[str | int]) -> None:
    """Set the dimensions of an input or output; with a max_batch_size the batch is not among them."""
    tensor.dims.extend(-1 if isinstance(size, str) else size for size in shape[1:])
    if not tensor.dims:
        # One number for each sample: Triton refuses a tensor without dimensions, and reshapes [1] to it.
        tensor.dims.append(1)
        tensor.reshape.SetInParent()


def _accelerate(model: ServedModel) -> dict[str, str]:
    """Return the accelerator's parameters: where built plans are kept, and the profile of every input.

    Without a profile ONNX Runtime builds anew for each shape that it meets. The precision is the graph's.
    """
    enable, path = CACHE_KEYS
    shapes = profile_shapes(model.signature, model.batches)
    profile = [
        ",".join(f"{name}:{'x'.join(map(str, ends[end]))}" for name, ends in shapes.items())
        for end in range(len(PROFILE_KEYS))
    ]
    return {enable: "1", path: cache_folder(model.sha256), **dict(zip(PROFILE_KEYS, profile, strict=True))}


def triton_messages() -> Any:
    """Import Triton's message.

    Raises:
        ConfigError: tritonclient is not installed.
    """
    try:
        from tritonclient.grpc import model_config_pb2  # type: ignore[import-untyped]
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"Triton's configuration cannot be written without tritonclient: {error}",
            allowed="tritonclient[grpc]",
            todo='pip install "shardline[export]"',
        ) from error
    return model_config_pb2


def config_as_text(config: ModelConfig) -> str:
    """Return a configuration as config.pbtxt has it."""
    from google.protobuf import text_format

    return f"# Written by shardline's export.\n{text_format.MessageToString(config)}"


def cache_folder(sha256: str) -> str:
    """Return where, in Triton's container, plans are kept that are built of an ONNX file when it loads.

    ONNX Runtime finds a plan by names in the graph, not by its weights: so every file has a folder of its own.
    """
    return f"/tmp/shardline-plans-{sha256[:16]}"
