"""What Triton Inference Server is told of an export: its image, and config.pbtxt from the manifest and the ONNX graph.

Here: `image_for`, `make_config`, `read_signature`, `list_fields`, and text to and from Triton's own message (of
tritonclient). Nothing is written or compared here: triton.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import EngineEntry, ExportManifest
from contracts.errors import ConfigError
from trainer.export.targets import TENSORRT

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig  # type: ignore[import-untyped]

CONFIG_NAME = "config.pbtxt"
LABELS_NAME = "labels.txt"
README_NAME = "README.md"

# By backend: the file that it looks for (Triton, docs/user_guide/model_repository.md).
MODEL_FILES = {"tensorrt": "model.plan", "onnxruntime": "model.onnx"}
# Releases by the TensorRT in their image: a plan loads in the version that built it and in no other. Collected
# 2026-11-21 from public repositories that name both; NVIDIA's table is
# https://docs.nvidia.com/deeplearning/frameworks/support-matrix/index.html. Not from Triton's own
# docs/introduction/compatibility.md: its TensorRT is that of the -trtllm- images, which have no tensorrt backend.
RELEASES = {
    "11.3.0": "26.09",
    "11.2.1": "26.08",
    "11.1.0": "26.07",
    "11.0.0": "26.06",
    "10.11.0": "25.06",
    "10.9.0": "25.04",
}
# For graphs: its ONNX Runtime 1.28 (Triton, docs/introduction/compatibility.md, 2026-08-19) reads every opset that
# export.opset allows.
ONNX_RELEASE = "26.08"
_IMAGE = "nvcr.io/nvidia/tritonserver:{}-py3"
IMAGES = re.compile(r"nvcr\.io/[\w./-]+:[\w.-]+")

# How long a request may wait for others to make a batch: the value of Triton's documentation of dynamic batching, and
# little beside a batch on any GPU. `perf_analyzer` finds a better one for a load that is known.
QUEUE_DELAY_US = 100

# Triton's types by ONNX's (onnx.TensorProto.DataType).
_TYPES = {1: "TYPE_FP32", 10: "TYPE_FP16", 16: "TYPE_BF16", 6: "TYPE_INT32", 7: "TYPE_INT64"}
_TYPES |= {2: "TYPE_UINT8", 9: "TYPE_BOOL", 11: "TYPE_FP64"}
# Of these, noise is a valid input.
_NOISY = ("TYPE_FP32", "TYPE_FP16", "TYPE_BF16", "TYPE_FP64")
# By the builders' (tensorrt.DataType), as `EngineTensor.dtype` has them.
BUILDER_TYPES = {"float": "TYPE_FP32", "half": "TYPE_FP16", "bf16": "TYPE_BF16", "int32": "TYPE_INT32"}
BUILDER_TYPES |= {"int64": "TYPE_INT64", "uint8": "TYPE_UINT8", "bool": "TYPE_BOOL"}
Signature = dict[str, tuple[str, list[str | int]]]
"""Triton's type and the shape of each tensor, by name; the batch is dynamic and comes first."""


def image_for(builder: str) -> str:
    """Return the Triton image that loads what a builder made; for tensorrt_rtx, the one that runs the ONNX graph.

    Args:
        builder: Package and version, as `EngineEntry.builder` has them.

    Raises:
        ConfigError: No release is known to have this version of tensorrt.
    """
    package, _, version = builder.partition(" ")
    if package != TENSORRT:
        return _IMAGE.format(ONNX_RELEASE)
    release = RELEASES.get(".".join(version.split(".")[:3]))
    if release is None:
        raise ConfigError(
            f"no Triton release is known to have {builder}, and a plan loads in no other version",
            allowed=", ".join(f"tensorrt {known} (Triton {name})" for known, name in RELEASES.items()),
            todo="export with one of these versions, or add the release that NVIDIA's support matrix of frameworks "
            "names for this one to RELEASES in trainer/export/triton_config.py",
        )
    return _IMAGE.format(release)


def dims_of(shape: Sequence[str | int]) -> list[int]:
    """Return a shape without its batch; what varies is -1."""
    return [-1 if isinstance(size, str) else size for size in shape[1:]]


def make_config(
    document: ExportManifest, signature: tuple[Signature, Signature], *, name: str, has_labels: bool
) -> ModelConfig:
    """Return Triton's configuration of the model that ships.

    Args:
        document: The manifest.
        signature: Inputs and outputs of the graph that ships.
        name: The model's.
        has_labels: Whether outputs are scores of classes, whose names are in a file.

    Raises:
        ValueError: A dimension varies that the manifest's signature does not know.
    """
    message, engine, backend = triton_messages(), engine_of(document), backend_of(document)
    config = message.ModelConfig(name=name, backend=backend, max_batch_size=engine.max_batch)
    inputs, outputs = signature
    labels = LABELS_NAME if has_labels else ""
    # With a max_batch_size the batch is not among the dimensions.
    given = [config.input.add(name=tensor, data_type=kind) for tensor, (kind, _) in inputs.items()]
    given += [
        config.output.add(name=tensor, data_type=kind, label_filename=labels) for tensor, (kind, _) in outputs.items()
    ]
    for entry, (_, shape) in zip(given, [*inputs.values(), *outputs.values()], strict=True):
        entry.dims.extend(_known_dims(shape, document))
        if not entry.dims:
            # One number for each sample: Triton refuses a tensor without dimensions, and reshapes [1] to it.
            entry.dims.append(1)
            entry.reshape.SetInParent()
    config.dynamic_batching.preferred_batch_size.append(engine.opt_batch)
    config.dynamic_batching.max_queue_delay_microseconds = QUEUE_DELAY_US
    # A plan needs a GPU; ONNX Runtime takes what the machine has.
    kind = "KIND_GPU" if backend == TENSORRT else "KIND_AUTO"
    config.instance_group.add(kind=kind, count=1)
    tuned = {size: found.opt for size, found in document.model_signature.dimensions.items()}
    for batch in sorted({1, engine.opt_batch}):
        # The model counts as ready only then: what is built at a first request is built before there is one.
        warmup = config.model_warmup.add(name=f"batch of {batch}", batch_size=batch)
        for tensor, (kind, shape) in inputs.items():
            warm = warmup.inputs[tensor]
            warm.data_type = message.DataType.Value(kind)
            # Zeros where noise may be outside of a vocabulary.
            if kind in _NOISY:
                warm.random_data = True
            else:
                warm.zero_data = True
            warm.dims.extend([tuned[size] if isinstance(size, str) else size for size in shape[1:]] or [1])
    return config


def _known_dims(shape: Sequence[str | int], document: ExportManifest) -> list[int]:
    """Return a shape without its batch.

    Raises:
        ValueError: A dimension varies that the manifest's signature does not know.
    """
    known = document.model_signature.dimensions
    if unknown := [size for size in shape[1:] if isinstance(size, str) and size not in known]:
        raise ValueError(f"{', '.join(unknown)} varies")
    return dims_of(shape)


def read_signature(graph: Path) -> tuple[Signature, Signature]:
    """Return inputs and outputs of an ONNX file."""
    import onnx

    content = onnx.load(graph, load_external_data=False).graph
    found = []
    for items in (content.input, content.output):
        signature: Signature = {}
        for item in items:
            tensor = item.type.tensor_type
            shape: list[str | int] = [dimension.dim_param or dimension.dim_value for dimension in tensor.shape.dim]
            signature[item.name] = (_TYPES.get(tensor.elem_type, f"ONNX type {tensor.elem_type}"), shape)
        found.append(signature)
    return found[0], found[1]


def engine_of(document: ExportManifest) -> EngineEntry:
    """Return the engine that says builder and batch sizes: all engines of an export have the same."""
    if not document.engines:
        raise ConfigError(
            "the export has no engine: batch sizes for Triton are those of its profile",
            allowed="an export with an engine",
            todo="export again, with a target",
        )
    return document.engines[0]


def backend_of(document: ExportManifest) -> str:
    """Return the backend: the plan of tensorrt_rtx is none that Triton's tensorrt backend loads."""
    is_plan = engine_of(document).builder.partition(" ")[0] == TENSORRT
    return TENSORRT if is_plan else "onnxruntime"


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

    return f"# Written by shardline's export; see {README_NAME} above it.\n{text_format.MessageToString(config)}"


def parse_config(content: str) -> ModelConfig:
    """Read a config.pbtxt.

    Raises:
        ValueError: It is none. The format itself takes any backend and any batch size.
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(content, triton_messages().ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error


def list_fields(config: ModelConfig) -> dict[str, str]:
    """Return the values that a configuration sets, by path (`input[0].dims[1]`); what is unset has Triton's default."""
    from google.protobuf import json_format

    return dict(_list_values("", json_format.MessageToDict(config, preserving_proto_field_name=True)))


def _list_values(path: str, value: Any) -> Iterator[tuple[str, str]]:
    # An empty message counts as well: that it is there switches something on (sequence_batching).
    if isinstance(value, dict) and (value or not path):
        for name, item in value.items():
            yield from _list_values(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _list_values(f"{path}[{place}]", item)
    else:
        yield path, repr(value)
