"""The hand-over to Triton Inference Server: a model repository, and what contradicts it.

    triton/README.md               how to serve it
    triton/NAME/config.pbtxt       names, types, shapes, batch sizes: from the manifest and the ONNX graph
    triton/NAME/labels.txt         a class a line
    triton/NAME/1/model.onnx       or model.plan, where tensorrt built the engine

Here: `write_repository`, `find_contradictions`. Run by trainer/export/task.py and by verification. No server has loaded
what is written here: a test parses config.pbtxt with Triton's own message, and the rest is compared.

What Triton loads lies in the repository itself, although the graph lies beside it once more: Vertex AI takes this
folder and nothing else, and a bucket knows no links. Where files can be linked both names are one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import EngineEntry, ExportManifest
from contracts.errors import ConfigError
from trainer.export import predict
from trainer.export.targets import TENSORRT
from trainer.export.triton_config import (
    BUILDER_TYPES,
    CONFIG_NAME,
    IMAGES,
    LABELS_NAME,
    MODEL_FILES,
    QUEUE_DELAY_US,
    README_NAME,
    Signature,
    backend_of,
    config_as_text,
    engine_of,
    image_for,
    make_config,
    parse_config,
    read_signature,
    triton_messages,
)

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig  # type: ignore[import-untyped]

REPOSITORY = "triton"
# In no fingerprint and no file is the name of a line, so an export that two lines share is called the same in both. A
# name of its own for each export would make a new version of a model a new model.
MODEL_NAME = "classifier"
VERSION = "1"
# Fields of a configuration that are written here, and looked at: any other would change what is served, unseen.
_FIELDS = {
    *("name", "backend", "max_batch_size", "input", "output"),
    *("dynamic_batching", "instance_group", "model_warmup"),
}


def write_repository(folder: Path, document: ExportManifest, *, name: str = MODEL_NAME) -> list[str]:
    """Write the model repository below `folder`/triton.

    Args:
        folder: Where labels.json, the graphs and the engines lie, under the names that the document gives them.
        document: The manifest; its list of files need not be final.
        name: What clients call the model.

    Returns:
        The files written, relative to `folder`, sorted.

    Raises:
        ConfigError: No Triton release loads this engine, its smallest batch is not 1, or tritonclient is not installed.
    """
    engine, backend = engine_of(document), backend_of(document)
    image = image_for(engine.builder)
    source = document.graph().name
    if backend == TENSORRT:
        if engine.min_batch != 1:
            raise ConfigError(
                f"the engine's smallest batch is {engine.min_batch}: Triton would send it single images",
                allowed="export.min_batch 1",
                todo="set export.min_batch=1",
            )
        source = engine.name
    labels = _read_labels(folder)
    config = make_config(document, read_signature(folder / document.graph().name), name=name)
    model = folder / REPOSITORY / name
    (model / VERSION).mkdir(parents=True, exist_ok=True)
    _link(folder / source, model / VERSION / MODEL_FILES[backend])
    (model / LABELS_NAME).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    (model / CONFIG_NAME).write_text(config_as_text(config), encoding="utf-8")
    (folder / REPOSITORY / README_NAME).write_text(_readme(document, name, image), encoding="utf-8")
    return sorted(path.relative_to(folder).as_posix() for path in (folder / REPOSITORY).rglob("*") if path.is_file())


def find_contradictions(folder: Path, document: ExportManifest) -> list[str]:
    """Return what config.pbtxt, the manifest, the ONNX graph and the labels say differently; a sentence for each.

    Parsing alone finds little: the text format takes a negative batch size, and any backend.

    Args:
        folder: Of the export: labels.json, graphs, engines, triton/.
        document: Its manifest.
    """
    repository = folder / REPOSITORY
    models = sorted(path for path in repository.glob("*") if path.is_dir())
    if len(models) != 1:
        names = ", ".join(path.name for path in models) or "none"
        return [f"{REPOSITORY}/ holds one model; found: {names}"]
    model = models[0]
    try:
        config = parse_config((model / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{CONFIG_NAME} cannot be read: {error}"]
    try:
        signature = read_signature(folder / document.graph().name)
    except Exception as error:  # noqa: BLE001 - a damaged protobuf raises what it likes; it is a finding, not a fault
        return [f"{document.graph().name} cannot be read: {error}"]
    return [
        *_compare_model(model, config, document),
        *_compare_batches(config, engine_of(document)),
        *_compare_engines(document, signature),
        *_compare_tensors("input", config.input, signature[0], document.inputs),
        *_compare_tensors("output", config.output, signature[1], document.outputs),
        *_compare_warmup(config, signature[0]),
        *_compare_labels(folder, model, config, signature[1]),
        *_compare_image(repository, document),
    ]


def _compare_model(model: Path, config: ModelConfig, document: ExportManifest) -> Iterator[str]:
    for field, _ in config.ListFields():
        if field.name not in _FIELDS:
            yield f"{CONFIG_NAME} sets {field.name}, which the export does not"
    if config.name != model.name:
        yield f"{CONFIG_NAME} names the model {config.name!r}, its folder is {model.name!r}"
    backend, engine = backend_of(document), engine_of(document)
    if config.backend != backend:
        yield f"{CONFIG_NAME} has backend {config.backend!r}; what {engine.builder} built needs {backend!r}"
    file = model / VERSION / MODEL_FILES[backend]
    entry = engine if backend == TENSORRT else document.graph()
    if not file.is_file():
        yield f"{model.name}/{VERSION}/{file.name} is missing"
    elif _sha256(file) != entry.sha256:
        yield f"{model.name}/{VERSION}/{file.name} is not the {entry.name} of the manifest"


def _compare_engines(document: ExportManifest, signature: tuple[Signature, Signature]) -> Iterator[str]:
    for engine in document.engines:
        if engine.onnx_sha256 != document.graph().sha256:
            yield f"{engine.name} was not built from {document.graph().name}"
        for mode, graph in zip(("input", "output"), signature, strict=True):
            said = {
                tensor.name: (BUILDER_TYPES.get(tensor.dtype, tensor.dtype), tensor.shape[1:])
                for tensor in engine.tensors
                if tensor.mode == mode
            }
            expected = {name: (kind, shape[1:]) for name, (kind, shape) in graph.items()}
            # Without any: a manifest of a version that did not take them from the build.
            if engine.tensors and said != expected:
                yield f"{engine.name} has {mode} {said}, the ONNX graph {expected}"


def _compare_batches(config: ModelConfig, engine: EngineEntry) -> Iterator[str]:
    profile = f"the engine's profile is {engine.min_batch} to {engine.max_batch}, tuned for {engine.opt_batch}"
    if not 1 <= config.max_batch_size <= engine.max_batch:
        yield f"{CONFIG_NAME} has max_batch_size {config.max_batch_size}; {profile}"
    if config.backend == TENSORRT and engine.min_batch != 1:
        yield f"Triton sends single images; {profile}"
    if not 1 <= engine.min_batch <= engine.opt_batch <= engine.max_batch:
        yield f"batch sizes fall: {profile}"
    preferred = list(config.dynamic_batching.preferred_batch_size)
    if engine.opt_batch not in preferred:
        yield f"{CONFIG_NAME} prefers batches of {preferred}; {profile}"
    wrong = [batch for batch in preferred if not 1 <= batch <= config.max_batch_size]
    if wrong:
        yield f"{CONFIG_NAME} prefers batches of {wrong}, its max_batch_size is {config.max_batch_size}"
    if not config.instance_group or any(group.count < 1 for group in config.instance_group):
        yield f"{CONFIG_NAME} has no instance of the model"
    kinds = {_name(triton_messages().ModelInstanceGroup.Kind, group.kind) for group in config.instance_group}
    if config.backend == TENSORRT and kinds != {"KIND_GPU"}:
        yield f"{CONFIG_NAME} puts an engine on {', '.join(sorted(kinds))}"


def _compare_tensors(
    side: str, configured: Any, signature: Signature, manifest: dict[str, list[str | int]]
) -> Iterator[str]:
    kinds = triton_messages().DataType
    shapes = {name: shape for name, (_, shape) in signature.items()}
    if shapes != manifest:
        yield f"the manifest has {side} {manifest}, the ONNX graph {shapes}"
    names = [tensor.name for tensor in configured]
    if sorted(names) != sorted(signature):
        yield f"{CONFIG_NAME} has {side} {sorted(names)}, the ONNX graph {sorted(signature)}"
    for tensor in configured:
        if tensor.name not in signature:
            continue
        kind, shape = signature[tensor.name]
        if _name(kinds, tensor.data_type) != kind:
            yield f"{CONFIG_NAME} has {tensor.name} as {_name(kinds, tensor.data_type)}, the ONNX graph as {kind}"
        if list(tensor.dims) != shape[1:]:
            yield f"{CONFIG_NAME} has {tensor.name} with dims {list(tensor.dims)}, the ONNX graph {shape[1:]} an image"
        if not isinstance(shape[0], str):
            yield f"the ONNX graph has {tensor.name} with a batch of {shape[0]}, which is not dynamic"


def _compare_warmup(config: ModelConfig, inputs: Signature) -> Iterator[str]:
    kinds = triton_messages().DataType
    if not config.model_warmup:
        yield f"{CONFIG_NAME} has no model_warmup"
    for warmup in config.model_warmup:
        if not 1 <= warmup.batch_size <= config.max_batch_size:
            yield f"{CONFIG_NAME} warms up with {warmup.batch_size} images, max_batch_size is {config.max_batch_size}"
        given = {name: (_name(kinds, item.data_type), list(item.dims)) for name, item in warmup.inputs.items()}
        expected = {name: (kind, shape[1:]) for name, (kind, shape) in inputs.items()}
        if given != expected:
            yield f"{CONFIG_NAME} warms up with {given}, the ONNX graph takes {expected}"


def _compare_labels(folder: Path, model: Path, config: ModelConfig, outputs: Signature) -> Iterator[str]:
    for tensor in config.output:
        if tensor.label_filename != LABELS_NAME:
            yield f"{CONFIG_NAME} has labels of {tensor.name} in {tensor.label_filename!r}, they are in {LABELS_NAME!r}"
    try:
        expected = _read_labels(folder)
        content = (model / LABELS_NAME).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        yield f"labels cannot be read: {error}"
        return
    # Not splitlines: Triton ends a line at \n alone, and a label may hold what else Python takes for an end.
    found = content.removesuffix("\n").split("\n")
    if found != expected:
        place = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
        where = f"from class {place} on" if place is not None else f"{len(found)} against {len(expected)}"
        yield f"{LABELS_NAME} has other labels than labels.json, {where}"
    for name, (_, shape) in outputs.items():
        if shape[1:] != [len(expected)]:
            yield f"{len(expected)} labels, but {name} has {shape[1:]} values an image"


def _compare_image(repository: Path, document: ExportManifest) -> Iterator[str]:
    try:
        image = image_for(engine_of(document).builder)
        named = set(IMAGES.findall((repository / README_NAME).read_text(encoding="utf-8")))
    except (ConfigError, OSError, ValueError) as error:
        yield f"which Triton image serves it is not known: {error}"
        return
    if named != {image}:
        yield f"{README_NAME} names {', '.join(sorted(named)) or 'no image'}; the model needs {image}"


def _read_labels(folder: Path) -> list[str]:
    """Return the classes, each as one line."""
    labels = json.loads((folder / predict.LABELS_NAME).read_text(encoding="utf-8"))
    return [str(label).replace("\r", " ").replace("\n", " ") for label in labels]


def _name(kinds: Any, number: int) -> str:
    """Return the name of an enum's value; the text format takes numbers that have none."""
    return str(kinds.Name(number)) if number in kinds.values() else str(number)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # A file system without links, or another one.
        shutil.copyfile(source, target)


def _readme(document: ExportManifest, name: str, image: str) -> str:
    engine, backend = engine_of(document), backend_of(document)
    if backend == TENSORRT:
        what = (
            f"`{name}/{VERSION}/{MODEL_FILES[backend]}` is the engine for {engine.target} by {engine.builder}. It "
            "loads in the image below, whose TensorRT is of the same version, on a GPU of that compute capability."
        )
    else:
        what = (
            f"`{name}/{VERSION}/{MODEL_FILES[backend]}` is the ONNX graph in {document.precision}, for ONNX Runtime. "
            f"The engines ({engine.builder}) lie outside of this repository: Triton's tensorrt backend does not load "
            "plans of TensorRT-RTX."
        )
    shape = ", ".join(str(size) for size in next(iter(document.inputs.values()))[1:])
    return f"""# Triton model repository

{what}

    docker run --rm --gpus all -p 8000:8000 -p 8001:8001 -p 8002:8002 -v "$PWD:/models:ro" \\
        {image} tritonserver --model-repository=/models --disable-auto-complete-config

Not run: no server has loaded this repository. {CONFIG_NAME} was parsed with Triton's own message and compared with the
manifest and the graph; `--disable-auto-complete-config` makes Triton take it as it is.

Input: [batch, {shape}] float32, prepared as preprocess.json beside this folder says (predict.py does it). Batches of up
to {engine.max_batch}; requests wait up to {QUEUE_DELAY_US} microseconds to make a batch of {engine.opt_batch}.
"""
