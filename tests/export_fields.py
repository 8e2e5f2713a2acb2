"""Manifests of trainings and exports that no stage made, for tests of their readers."""

from __future__ import annotations

from typing import Any

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    EngineEntry,
    ExportManifest,
    Gate,
    GraphEntry,
    Verification,
)
from contracts.artifacts.export import METRIC, PARITY, ShippedFile

HEADLINE = {"metric": "accuracy", "direction": "max"}
L4 = "NVIDIA L4 (sm89)"
FILE = {"bytes": 5, "crc32c": "0" * 8}
RAN = "onnxruntime 1.31.1"


def image_export(size: int = 16, classes: int = 3) -> dict[str, Any]:
    """Return task, headline and signature of a classifier of images."""
    images = {"dtype": "float32", "shape": ["batch", 3, size, size]}
    logits = {"dtype": "float32", "shape": ["batch", classes], "compare": "classes"}
    signature = {"inputs": {"images": images}, "outputs": {"logits": logits}}
    return {"task": "image_classification", "headline": HEADLINE, "signature": signature}


def make_checkpoint(**changes: Any) -> CheckpointManifest:
    """Return the manifest of a finished training of image_classification."""
    values: dict[str, Any] = {
        "order": {"kind": "full"},
        "task": {"name": "image_classification", "arguments": {}},
        "finished": True,
        "fingerprint": "7" * 16,
        "shards_fingerprint": "5" * 16,
        "parameters_sha256": "0" * 64,
        **dict.fromkeys(("step", "best_step", "position", "slot_size"), 7),
        "epoch": 1,
        **{name: {} for name in ("model", "data", "metrics", "environment")},
        "classes": [],
        "files": [],
    }
    return CheckpointManifest(**{**values, **changes})


def make_graph(precision: str = "fp16", **changes: Any) -> GraphEntry:
    digit = {"fp32": "1", "fp16": "2", "int8": "3"}[precision]
    values = {"name": f"model.{precision}.onnx", **FILE, "sha256": digit * 64, "precision": precision}
    return GraphEntry(**{**values, **changes})


def make_engine(**changes: Any) -> EngineEntry:
    values = {
        **FILE,
        "name": "model.fp16.sm89.engine",
        "sha256": "ab" * 32,
        "onnx_sha256": "2" * 64,
        "builder": "tensorrt_rtx 1.7.1",
        "target": "sm89",
        "opt_batch": 8,
        "max_batch": 64,
    }
    return EngineEntry(**{**values, **changes})


def make_gates(file: str, *, device: str = "", precision: str = "fp16", ran: str = RAN) -> list[Gate]:
    """Return gates that a file passed."""
    about: dict[str, Any] = {"precision": precision, "file": file, "status": "passed", "ran": ran, "device": device}
    figures = {"relative_error": 3.4e-4, "min_cosine": 0.9999996, "samples": 320}
    return [
        Gate(name=PARITY, **about, figures=figures, limits={"relative_error": 5e-3, "min_cosine": 0.9999}),
        Gate(name=METRIC, **about, figures={"drop": 0.003125, "samples": 320}, limits={"drop": 0.005}),
    ]


def make_manifest(**changes: Any) -> ExportManifest:
    """Return a sealed manifest: fp16, runtime tensorrt_rtx, an engine that no GPU ran."""
    values: dict[str, Any] = {
        "fingerprint": "e" * 16,
        "precision": "fp16",
        "asked_precision": "fp16",
        "tried": [{"precision": "fp16", "outcome": "kept", "kept_fp32": ["encoder.norm"]}],
        "opset": 20,
        "runtime": "tensorrt_rtx",
        "served": "model.fp16.sm89.engine",
        "graphs": [make_graph("fp32"), make_graph("fp16")],
        "engine": make_engine(),
        "gates": make_gates("model.fp16.onnx"),
        "metrics": {"torch": {"accuracy": 0.9375}, "fp32": {"accuracy": 0.9375}, "fp16": {"accuracy": 0.934375}},
        "test_samples": 320,
        "proof_samples": 320,
        "checkpoint_sha256": "a1" * 32,
        "shards_fingerprint": "5" * 16,
        "made_with": {"torch": "2.13.0"},
        "files": [],
        **image_export(),
    }
    return ExportManifest(**{**values, **changes}).sealed()


def make_verification(document: ExportManifest, *, device: str = L4) -> Verification:
    """Return the verification of an export's engine, as `shardline verify` writes it."""
    assert document.engine is not None
    ran = document.engine.builder
    return Verification(
        fingerprint=document.fingerprint,
        export_sha256=document.sha256,
        engine_sha256=document.engine.sha256,
        target=document.engine.target,
        gates=make_gates(document.served, device=device, precision=document.precision, ran=ran),
    )


def publish_export(uri: str, *, device: str = L4, **changes: Any) -> ExportManifest:
    """Write an export for Triton, which a GPU ran (`device`) or none (empty), with its files; return its manifest."""
    plan = "triton/classifier/1/model.plan"
    for name in ("model.fp32.onnx", "model.fp16.onnx", plan, "triton/classifier/config.pbtxt"):
        storage.replace(storage.join(uri, *name.split("/")), name.encode())

    def described(name: str) -> dict[str, Any]:
        return ShippedFile.of(uri, name).model_dump()

    graphs = [make_graph(precision, **described(f"model.{precision}.onnx")) for precision in ("fp32", "fp16")]
    values: dict[str, Any] = {
        "runtime": "tensorrt",
        "served": plan,
        "graphs": graphs,
        "engine": make_engine(**described(plan), onnx_sha256=graphs[1].sha256, builder="tensorrt 11.2.1"),
        "gates": make_gates(plan, device=device, ran="tensorrt 11.2.1"),
        "files": [described("triton/classifier/config.pbtxt")],
    }
    document = make_manifest(**{**values, **changes})
    storage.replace(storage.join(uri, MANIFEST_NAME), document.to_json())
    return document
