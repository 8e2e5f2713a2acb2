"""Model repository of Triton Inference Server, for the runtimes tensorrt and onnx.

    triton/NAME/config.pbtxt       names, types, shapes, batch sizes, settings of the runtime
    triton/NAME/labels.txt         one class per line, where outputs are classes
    triton/NAME/1/model.onnx       or model.plan: the served model

Here: `model_path`, `write_repository`, `docker_command`. No server has loaded such a repository yet; its texts were
parsed with Triton's message (tritonclient 2.73, model_config.proto) when they were written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from contracts.artifacts.signature import BATCH, Signature, TensorSpec
from contracts.config.stages import Runtime
from contracts.serving import (
    CONFIG_NAME,
    GRAPH_LEVELS,
    MODEL_FILES,
    ONNX,
    REPOSITORY,
    TENSORRT,
    VERSION,
    graph_level,
    model_name,
)

LABELS_NAME = "labels.txt"
# How long a request may wait for others to make a batch: the value of Triton's documentation of dynamic batching.
QUEUE_DELAY_US = 100

# Triton's types by those of a signature.
_TYPES = {"float32": "TYPE_FP32", "int64": "TYPE_INT64", "int32": "TYPE_INT32"}
_TYPES |= {"uint8": "TYPE_UINT8", "bool": "TYPE_BOOL"}


def model_path(task: str, runtime: Runtime) -> str:
    """Return the path of the served model below the export's folder; `runtime` is tensorrt or onnx."""
    return f"{REPOSITORY}/{model_name(task)}/{VERSION}/{MODEL_FILES[runtime]}"


def write_repository(
    folder: Path,
    *,
    task: str,
    runtime: Runtime,
    precision: str,
    model_sha256: str,
    signature: Signature,
    batches: tuple[int, int],
    labels: Sequence[str] | None,
) -> None:
    """Write everything but the model itself below `folder`/triton.

    Args:
        folder: Of the export.
        task: task.name.
        runtime: tensorrt or onnx.
        precision: Of the served model.
        model_sha256: Of the served model.
        signature: Of the model.
        batches: Tuned and largest batch size.
        labels: Names of the classes, in the order of the outputs; None: the outputs are not classes.
    """
    name = model_name(task)
    target = folder / REPOSITORY / name
    target.mkdir(parents=True, exist_ok=True)
    if labels is not None:
        # Triton reads one label per line.
        lines = [label.replace("\r", " ").replace("\n", " ") for label in labels]
        (target / LABELS_NAME).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    label_filename = "" if labels is None else f'\n  label_filename: "{LABELS_NAME}"'
    batching = f"preferred_batch_size: {batches[0]} max_queue_delay_microseconds: {QUEUE_DELAY_US}"
    parts = [
        "# Written by shardline's export.",
        f'name: "{name}"',
        f'backend: "{"tensorrt" if runtime == TENSORRT else "onnxruntime"}"',
        f"max_batch_size: {batches[1]}",
        *(_tensor("input", name, spec) for name, spec in signature.inputs.items()),
        *(_tensor("output", name, spec, label_filename) for name, spec in signature.outputs.items()),
        # Plans need a GPU; without one ONNX Runtime silently ignores the accelerator.
        "instance_group { count: 1 kind: KIND_GPU }",
        f"dynamic_batching {{ {batching} }}",
    ]
    if runtime == ONNX:
        parts.append(_optimization(precision, model_sha256, signature, batches))
    # Triton reports the model as ready after these batches.
    parts += [_warmup(batch, signature) for batch in sorted({1, batches[0]})]
    (target / CONFIG_NAME).write_text("".join(f"{part}\n" for part in parts), encoding="utf-8")


def _tensor(kind: str, name: str, spec: TensorSpec, more: str = "") -> str:
    """Return an input or output; with a max_batch_size the batch is not among its dims."""
    dims = [-1 if isinstance(size, str) else size for size in spec.shape[1:]]
    if not dims:
        # One number per sample: Triton refuses a tensor without dims, and reshapes [1] to it.
        dims, more = [1], f"{more}\n  reshape {{ shape: [] }}"
    return f"{kind} {{\n  name: {_quote(name)}\n  data_type: {_TYPES[spec.dtype]}\n  dims: {dims}{more}\n}}"


def _optimization(precision: str, model_sha256: str, signature: Signature, batches: tuple[int, int]) -> str:
    """Return the graph level, and the accelerator with its cache and the profile of every input.

    Without a profile ONNX Runtime builds a plan for each new shape. Keys are those of onnxruntime_backend,
    src/onnxruntime.cc of 2026-06-29. There is no precision_mode: TensorRT 11 takes the graph's.
    """
    parameters = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": _cache_folder(model_sha256)}
    for place, end in enumerate(("min", "opt", "max")):
        sizes = {name: (size.min, size.opt, size.max)[place] for name, size in signature.dimensions.items()}
        sizes[BATCH] = (1, *batches)[place]
        shapes = {
            name: "x".join(str(sizes.get(str(size), size)) for size in spec.shape)
            for name, spec in signature.inputs.items()
        }
        parameters[f"trt_profile_{end}_shapes"] = ",".join(f"{name}:{shape}" for name, shape in shapes.items())
    lines = [f"      parameters {{ key: {_quote(key)} value: {_quote(value)} }}" for key, value in parameters.items()]
    entries = "\n".join(lines)
    return f"""optimization {{
  graph {{ level: {GRAPH_LEVELS[graph_level(precision)]} }}
  execution_accelerators {{
    gpu_execution_accelerator {{
      name: "tensorrt"
{entries}
    }}
  }}
}}"""


def _warmup(batch: int, signature: Signature) -> str:
    inputs = ""
    for name, spec in signature.inputs.items():
        dims = [signature.dimensions[size].opt if isinstance(size, str) else size for size in spec.shape[1:]] or [1]
        # Random integers may exceed the vocabulary.
        data = "random_data" if spec.dtype == "float32" else "zero_data"
        value = f"data_type: {_TYPES[spec.dtype]} dims: {dims} {data}: true"
        inputs += f"  inputs {{ key: {_quote(name)} value {{ {value} }} }}\n"
    return f'model_warmup {{\n  name: "batch of {batch}"\n  batch_size: {batch}\n{inputs}}}'


def _quote(text: str) -> str:
    """Quote a string for the text format, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


def _cache_folder(sha256: str) -> str:
    """Return the folder in Triton's container for plans built from an ONNX file.

    ONNX Runtime's cache ignores the weights, so each file has its own folder.
    """
    return f"/tmp/shardline-plans-{sha256[:16]}"


def docker_command(image: str, folder: str, *, sha256: str = "") -> list[str]:
    """Return the command that serves a model repository on this machine.

    Args:
        image: Triton's.
        folder: The repository, absolute.
        sha256: Of an ONNX file; a volume keeps the plan that is built from it.
    """
    command = ["docker", "run", "--rm", "--gpus", "all", "-p", "8000-8002:8000-8002", "-v", f"{folder}:/models:ro"]
    if sha256:
        path = _cache_folder(sha256)
        command += ["-v", f"{Path(path).name}:{path}"]
    return [*command, image, "tritonserver", "--model-repository=/models", "--disable-auto-complete-config"]
