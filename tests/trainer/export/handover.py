"""A finished export's folder and manifest, made by hand around real graphs: figures are arbitrary, hashes are not."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import (
    Attempt,
    EngineEntry,
    ExportManifest,
    FileEntry,
    Gate,
    GraphEntry,
    Latency,
    Parity,
    ShippedFile,
)
from contracts.artifacts.export import EngineTensor
from contracts.artifacts.signature import Signature
from tests.export_fields import image_export
from tests.trainer.export.conftest import CLASSES
from tests.trainer.export.graphs import describe, image_signature
from trainer.export.bundle.triton import describe_served, model_path, write_repository
from trainer.export.bundle.triton_config import ServedModel

ORT = "onnxruntime_tensorrt"
RTX = "tensorrt_rtx 1.7.1.116"
TENSORRT = "tensorrt 11.2.1.2"
ONNX_RAN = "onnxruntime 1.31.1 CPUExecutionProvider, graph optimisation off"


def make_export(folder: Path, exported: Any, *, builder: str = RTX, **changes: Any) -> ExportManifest:
    """Write graphs, an engine that no GPU ever saw, and labels; return a manifest that speaks for them."""
    runtime: Any = builder.partition(" ")[0]
    served = model_path("image_classification", runtime)
    (folder / served).parent.mkdir(parents=True, exist_ok=True)
    ships, engine = (
        ("model.fp16.onnx", folder / served) if runtime == "tensorrt" else (served, folder / "model.fp16.sm89.engine")
    )
    shutil.copyfile(exported.fp32, folder / "model.fp32.onnx")
    shutil.copyfile(exported.fp16, folder / ships)
    (folder / "labels.json").write_text(json.dumps(CLASSES))
    engine.write_bytes(b"a plan" * 100)
    graphs = [
        GraphEntry(**entry_of(folder, "model.fp32.onnx"), precision="fp32"),
        GraphEntry(**entry_of(folder, ships), precision="fp16", kept_fp32=["encoder.norm"]),
    ]
    inputs, outputs = describe(folder / ships)
    model = served_model(folder / served, runtime, image_signature(32))
    config = write_repository(folder, model, builder=builder, labels=CLASSES).relative_to(folder).as_posix()
    values: dict[str, Any] = {
        "fingerprint": "e" * 16,
        "made_from": {"export": "1" * 16, "model": "2" * 16, "transform": "3" * 16, "builder": builder},
        "precision": "fp16",
        "asked_precision": "int8",
        "tried": [
            Attempt(precision="int8", outcome="failed", reason="int8 accuracy: 9 images | fewer right"),
            Attempt(precision="fp16", kept_fp32=["encoder.norm"], outcome="kept"),
        ],
        "verdict": "unproven",
        "opset": 20,
        **image_export(32, len(CLASSES)),
        "inputs": inputs,
        "outputs": outputs,
        "graphs": graphs,
        "engines": [
            EngineEntry(
                **entry_of(folder, engine.relative_to(folder).as_posix()),
                onnx_sha256=graphs[-1].sha256,
                builder=builder,
                precision="fp16",
                target="sm89",
                gpus=["l4", "rtx-4090"],
                min_batch=1,
                opt_batch=4,
                max_batch=10,
                tensors=[
                    EngineTensor(mode="input", name="images", dtype="float", shape=[-1, 3, 32, 32]),
                    EngineTensor(mode="output", name="logits", dtype="float", shape=[-1, 10]),
                ],
                build_s=1.25,
                peak_bytes=400_000_000,
            )
        ][: runtime != "onnxruntime_tensorrt"],
        "gates": [
            Gate(
                name="parity",
                precision="fp16",
                status="passed",
                ran=ONNX_RAN,
                figures={"relative_error": 3.125e-4, "samples": 24, "refuses max_batch + 1": True, "worst": None},
                limits={"relative_error": 5e-3},
            ),
            Gate(
                name="engine sm89",
                precision="fp16",
                status="not run",
                ran="not run: no GPU",
                reason="shardline verify on a GPU of sm89 completes the proof",
            ),
        ],
        "parity": {
            "onnx": {
                name: Parity(
                    ran=ONNX_RAN,
                    samples=24,
                    relative_error=error,
                    min_cosine=0.99999875,
                    top1_agreement=1.0,
                    reference_classes=7,
                    passed=True,
                )
                for name, error in (("fp32", 2.5e-7), ("fp16", 3.125e-4))
            },
            "engine": {"sm89": Parity(ran="not run: no GPU")},
        },
        "metrics": {
            name: {"accuracy": right / 24, "loss": 1.5 - right / 24}
            for name, right in {"torch": 22, "fp32": 22, "fp16": 21}.items()
        },
        "test_samples": 24,
        "served": describe_served(
            model,
            path=served,
            config=config,
            config_sha256=entry_of(folder, config)["sha256"],
            ran="not run: no GPU" if runtime == "tensorrt" else ONNX_RAN,
        ),
        "latency": [
            Latency(
                runner="onnxruntime 1.31.1",
                precision="fp16",
                device="cpu, 2 threads",
                batch=batch,
                p50_ms=1.5 * batch,
                p90_ms=1.75 * batch,
                p99_ms=2.125 * batch,
                images_per_s=640.5,
                repeats=25,
            )
            for batch in (1, 4)
        ],
        "latency_left_out": {"engine sm89": "not run: no GPU"},
        "checkpoint_sha256": "c" * 64,
        "shards_fingerprint": "5" * 16,
        "made_with": {"torch": "2.13.0", "onnx": "1.23.2"},
        "steps": {"trace": {"seconds": 4.5, "peak_bytes": 500_000_000}},
        "files": [
            ShippedFile.of(storage.normalise(folder), name)
            for name in ("labels.json", config, "triton/README.md", "triton/classifier/labels.txt")
        ],
    }
    return ExportManifest(**{**values, **changes})


def served_model(path: Path, runtime: Any, signature: Signature, *, precision: str = "fp16") -> ServedModel:
    """Return a classifier as Triton is told of it: batches of 1 to 10, tuned for 4."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return ServedModel("classifier", runtime, precision, sha256, signature, (1, 4, 10), has_labels=True)


def entry_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the fields of an entry of a file with its hash."""
    sha256 = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return {**FileEntry.of(storage.normalise(folder), name).model_dump(), "sha256": sha256}
