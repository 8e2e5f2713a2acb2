"""A model that needs no training: it names the colour that an image's average is nearest to. With shards and an export.

Its answers change with every way in which pixels can be prepared wrongly, since some of the images lie between colours.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Attempt,
    EngineEntry,
    ExportManifest,
    GraphEntry,
    ShardManifest,
    ShippedFile,
)
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from records.sample import Sample
from tests import shards
from tests.export_fields import image_export, make_checkpoint
from trainer.export.inputs import Inputs
from trainer.export.runtime import Builder
from trainer.predict.bundle import write_bundle

SIZE = 12
COLOURS = {
    "black": (0.0, 0.0, 0.0),
    "blue": (0.1, 0.2, 0.9),
    "green": (0.2, 0.8, 0.1),
    "grey": (0.5, 0.5, 0.5),
    "red": (0.9, 0.1, 0.2),
    "white": (1.0, 1.0, 1.0),
}
CLASSES = list(COLOURS)
SIGNATURE = Signature.model_validate(image_export(SIZE, len(CLASSES))["signature"])
MEAN, STD = [0.45, 0.5, 0.4], [0.2, 0.3, 0.25]
GRAPH_NAME = "model.fp32.onnx"


def draw(label: int, number: int, *, grey: bool = False) -> np.ndarray:
    """Return an image [H, W, 3] uint8 of some shape, whose average is near a class's colour, or between two."""
    random = np.random.default_rng([label, number])
    colour = np.array(list(COLOURS.values())[label]) * 255 + random.normal(0, 45, 3)
    if grey:
        colour[:] = colour.mean()
    height, width = random.integers(8, 40, 2)
    noise = random.integers(-20, 20, (height, width, 1 if grey else 3))
    return (colour + noise).clip(0, 255).astype(np.uint8)


def encode(pixels: np.ndarray, name: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, name, **options)
    return stream.getvalue()


def labels_of(label: int, number: int) -> tuple[int, ...]:
    """Return the labels of an image where it has several: its own, and for two of three images another."""
    return tuple(sorted({label, (label + number % 3) % len(CLASSES)}))


def write_shards(folder: Path, *, per_class: int = 12, grey: bool = False, several: bool = False) -> ShardManifest:
    """Write a test split in a tar, as the shard stage does it; `several`: labels are lists."""
    samples = []
    for place in range(per_class * len(CLASSES)):
        number, label = divmod(place, len(CLASSES))
        image_format = ("png", "jpeg")[number % 2]
        content = encode(draw(label, number, grey=grey), image_format)
        name, key = CLASSES[label], place.to_bytes(16, "big")
        own = labels_of(label, number)
        lists = {"labels": own, "class_names": tuple(CLASSES[one] for one in own)} if several else {}
        path = f"{name}/{number:03d}.{image_format}"
        samples.append(Sample(key, content, image_format, label, name, path, 0, 0, "", **lists))
    fields = {"fingerprint": "5" * 16, "classes": CLASSES, "multi_label": several, "mean": MEAN, "std": STD}
    return shards.write_shards(folder, {"test": [samples]}, **fields)


def write_graph(path: Path) -> None:
    """Write the model: the negative squared distance of an image's average from each colour, over five."""
    prototypes = (np.array(list(COLOURS.values())) - MEAN) / STD
    constants = {
        "shape": np.array([-1, 1, 3], np.int64),
        "prototypes": prototypes[None].astype(np.float32),
        "axes": np.array([2], np.int64),
        "scale": np.array(-0.2, np.float32),
    }
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Reshape", ["pooled", "shape"], ["average"]),
        helper.make_node("Sub", ["average", "prototypes"], ["apart"]),
        helper.make_node("Mul", ["apart", "apart"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "axes"], ["distance"], keepdims=0),
        helper.make_node("Mul", ["distance", "scale"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(CLASSES)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def make_inputs(shards: ShardManifest | None = None, thresholds: list[float] | None = None) -> Inputs:
    """Return the checkpoint as an export gets it; unset: shards whose pixels nothing changed."""
    shards, config = shards or ShardManifest.model_construct(), RunConfig()
    checkpoint = make_checkpoint(classes=CLASSES, data={"image_size": SIZE, "mean": MEAN, "std": STD})
    if thresholds is not None:
        checkpoint = checkpoint.model_copy(update={"calibration": {"thresholds": thresholds}})
        config = RunConfig.model_validate({"task": {"name": "image_multilabel"}})
    return Inputs("file:///none", checkpoint, "file:///none", shards, Builder("onnx", "", None), config)


def write_export(
    folder: Path, shards: ShardManifest | None = None, thresholds: list[float] | None = None
) -> ExportManifest:
    """Write a finished export without an engine; with `thresholds` of several labels."""
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder / GRAPH_NAME)
    inputs = make_inputs(shards, thresholds)
    write_bundle(folder, inputs, SIGNATURE, model_name=GRAPH_NAME, precision="fp32")
    return write_manifest(folder, task=inputs.config.task.name)


def write_manifest(
    folder: Path,
    task: str = "image_classification",
    signature: Signature | None = None,
    engine: EngineEntry | None = None,
) -> ExportManifest:
    """Write the manifest of what is in a folder now; what is served is the engine, where there is one."""
    uri = storage.normalise(folder)
    fields = image_export(SIZE, len(CLASSES)) | {"task": task}
    fields |= {} if signature is None else {"signature": signature}
    others = {GRAPH_NAME, MANIFEST_NAME, *([] if engine is None else [engine.name])}
    names = sorted(path.name for path in folder.iterdir() if path.name not in others)
    document = ExportManifest(
        fingerprint="9" * 16,
        precision="fp32",
        asked_precision="fp32",
        tried=[Attempt(precision="fp32", outcome="kept")],
        opset=20,
        runtime="onnx" if engine is None else "tensorrt_rtx",
        served=GRAPH_NAME if engine is None else engine.name,
        graphs=[GraphEntry(**ShippedFile.of(uri, GRAPH_NAME).model_dump(), precision="fp32")],
        engine=engine,
        gates=[],
        **fields,
        metrics={"fp32": {"accuracy": 1.0}},
        test_samples=1,
        proof_samples=512,
        checkpoint_sha256="0" * 64,
        shards_fingerprint="5" * 16,
        made_with={},
        files=[ShippedFile.of(uri, name) for name in names],
    ).sealed()
    (folder / MANIFEST_NAME).write_bytes(document.to_json())
    return document


def write_engine(folder: Path, content: bytes, **changes: Any) -> ExportManifest:
    """Add an engine for sm89 to an export, of any content; return the new manifest."""
    name, uri = "model.fp32.sm89.engine", storage.normalise(folder)
    (folder / name).write_bytes(content)
    values = {
        **ShippedFile.of(uri, name).model_dump(),
        "onnx_sha256": ShippedFile.of(uri, GRAPH_NAME).sha256,
        "builder": "tensorrt_rtx 1.7.1",
        "target": "sm89",
        "opt_batch": 8,
        "max_batch": 16,
    }
    return write_manifest(folder, engine=EngineEntry(**values | changes))
