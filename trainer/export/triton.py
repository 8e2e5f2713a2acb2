"""The hand-over to Triton Inference Server: a model repository, and what contradicts it.

    triton/README.md               how to serve it
    triton/NAME/config.pbtxt       names, types, shapes, batch sizes: from the manifest and the ONNX graph
    triton/NAME/labels.txt         a class a line, where outputs are classes
    triton/NAME/1/model.onnx       or model.plan, where tensorrt built the engine

Here: `write_repository`, `find_contradictions`. Run by trainer/export/task.py and by verification. No server has loaded
what is written here: a test parses config.pbtxt with Triton's own message, and the rest is compared.

What Triton loads lies in the repository itself, although the graph lies beside it once more: Vertex AI takes this
folder and nothing else, and a bucket knows no links. In the work folder both names are one file; publishing writes each
file by itself, so wherever an export is published the graph is stored twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.artifacts import ExportManifest
from contracts.errors import ConfigError
from contracts.serving import model_name
from trainer.export.bundles import bundle_of
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
    dims_of,
    engine_of,
    image_for,
    list_fields,
    make_config,
    parse_config,
    read_signature,
)
from trainer.export.workshop import hash_file

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig  # type: ignore[import-untyped]

REPOSITORY = "triton"
# In no fingerprint and no file is the name of a line, so an export that two lines share is called the same in both. A
# name of its own for each export would make a new version of a model a new model.
VERSION = "1"


def write_repository(folder: Path, document: ExportManifest) -> list[str]:
    """Write the model repository below `folder`/triton.

    Args:
        folder: Where the bundle, the graphs and the engines lie, under the names that the document gives them.
        document: The manifest; its list of files need not be final.

    Returns:
        The files written, relative to `folder`, sorted.

    Raises:
        ConfigError: No Triton release loads this engine, its smallest batch is not 1, or tritonclient is not installed.
    """
    engine, backend, name = engine_of(document), backend_of(document), model_name(document.task)
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
    labels = _read_labels(folder, document)
    config = make_config(
        document, read_signature(folder / document.graph().name), name=name, has_labels=labels is not None
    )
    model = folder / REPOSITORY / name
    (model / VERSION).mkdir(parents=True, exist_ok=True)
    _link(folder / source, model / VERSION / MODEL_FILES[backend])
    if labels is not None:
        (model / LABELS_NAME).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    (model / CONFIG_NAME).write_text(config_as_text(config), encoding="utf-8")
    (folder / REPOSITORY / README_NAME).write_text(_readme(document, name, image), encoding="utf-8")
    return sorted(path.relative_to(folder).as_posix() for path in (folder / REPOSITORY).rglob("*") if path.is_file())


def find_contradictions(folder: Path, document: ExportManifest) -> list[str]:
    """Return what config.pbtxt, the manifest, the ONNX graph and the labels say differently; a sentence for each.

    Parsing alone finds little: the text format takes a negative batch size, and any backend. So the whole message must
    be the one that `make_config` makes: any other field (reshape, format, platform) would change what is served.

    Args:
        folder: Of the export: its bundle, graphs, engines, triton/.
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
        labels = _read_labels(folder, document)
    except (OSError, ValueError) as error:
        return [f"labels cannot be read: {error}"]
    try:
        signature = read_signature(folder / document.graph().name)
    except Exception as error:  # noqa: BLE001 - a damaged protobuf raises what it likes; it is a finding, not a fault
        return [f"{document.graph().name} cannot be read: {error}"]
    return [
        *_compare_config(config, document, signature, model.name, has_labels=labels is not None),
        *_compare_model(model, document),
        *_compare_batches(document),
        *_compare_engines(document, signature),
        *_compare_tensors("input", signature[0], document.inputs),
        *_compare_tensors("output", signature[1], document.outputs),
        *_compare_labels(labels, model, signature[1]),
        *_compare_image(repository, document),
    ]


def _compare_config(
    config: ModelConfig,
    document: ExportManifest,
    signature: tuple[Signature, Signature],
    name: str,
    *,
    has_labels: bool,
) -> Iterator[str]:
    try:
        wanted = list_fields(make_config(document, signature, name=name, has_labels=has_labels))
    except (TypeError, ValueError) as error:
        yield f"{document.graph().name} has a type or a dynamic size that Triton is not told of: {error}"
        return
    found = list_fields(config)
    for path in sorted(found.keys() | wanted.keys()):
        said, expected = found.get(path, "nothing"), wanted.get(path, "nothing")
        if said != expected:
            yield f"{CONFIG_NAME} has {path} {said}; by manifest and ONNX graph it is {expected}"


def _compare_model(model: Path, document: ExportManifest) -> Iterator[str]:
    backend = backend_of(document)
    file = model / VERSION / MODEL_FILES[backend]
    entry = engine_of(document) if backend == TENSORRT else document.graph()
    if not file.is_file():
        yield f"{model.name}/{VERSION}/{file.name} is missing"
    elif hash_file(file) != entry.sha256:
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
            expected = {name: (kind, dims_of(shape)) for name, (kind, shape) in graph.items()}
            # Without any: a manifest of a version that did not take them from the build.
            if engine.tensors and said != expected:
                yield f"{engine.name} has {mode} {said}, the ONNX graph {expected}"


def _compare_batches(document: ExportManifest) -> Iterator[str]:
    engine = engine_of(document)
    profile = f"the engine's profile is {engine.min_batch} to {engine.max_batch}, tuned for {engine.opt_batch}"
    if backend_of(document) == TENSORRT and engine.min_batch != 1:
        yield f"Triton sends single images; {profile}"
    if not 1 <= engine.min_batch <= engine.opt_batch <= engine.max_batch:
        yield f"batch sizes fall: {profile}"


def _compare_tensors(side: str, signature: Signature, manifest: dict[str, list[str | int]]) -> Iterator[str]:
    shapes = {name: shape for name, (_, shape) in signature.items()}
    if shapes != manifest:
        yield f"the manifest has {side} {manifest}, the ONNX graph {shapes}"
    for name, shape in shapes.items():
        if not shape or not isinstance(shape[0], str):
            yield f"the ONNX graph has {name} with a batch of {shape[:1]}, which is not dynamic"


def _compare_labels(expected: list[str] | None, model: Path, outputs: Signature) -> Iterator[str]:
    if expected is None:
        return
    try:
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


def _read_labels(folder: Path, document: ExportManifest) -> list[str] | None:
    """Return the classes, each as one line; None where outputs are none."""
    labels = bundle_of(document.task).read_labels(folder)
    return None if labels is None else [label.replace("\r", " ").replace("\n", " ") for label in labels]


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
    inputs = ", ".join(
        f"{name} {spec.dtype} [{', '.join(map(str, spec.shape))}]"
        for name, spec in document.model_signature.inputs.items()
    )
    return f"""# Triton model repository

{what}

    docker run --rm --gpus all -p 8000:8000 -p 8001:8001 -p 8002:8002 -v "$PWD:/models:ro" \\
        {image} tritonserver --model-repository=/models --disable-auto-complete-config

Not run: no server has loaded this repository. {CONFIG_NAME} was parsed with Triton's own message and compared with the
manifest and the graph; `--disable-auto-complete-config` makes Triton take it as it is.

Inputs: {inputs}; the model card beside this folder says how they are made.
Batches of up to {engine.max_batch}; requests wait up to {QUEUE_DELAY_US} microseconds for one of {engine.opt_batch}.
"""
