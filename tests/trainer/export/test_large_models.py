"""ResNet-50 and ViT-B with random weights: memory of the steps that make files, and sizes of engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contracts.config import ModelSection
from tests.trainer.export.graphs import example_of, image_signature, inputs_of, run_outputs, write_fp32
from trainer.export.arrays import write_batches
from trainer.export.engine import build_engine
from trainer.export.half import write_fp16
from trainer.export.int8 import quantize_to_int8
from trainer.export.processes import run_step
from trainer.export.runtime import Builder, version_of
from trainer.tasks.image import build_network

SIGNATURE = image_signature(224, 1000)


def trace(architecture: str, path: Path, precision: str) -> None:
    """Write a graph of a random network."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_network(ModelSection(architecture=architecture), num_classes=1000, image_size=224).eval()
    if precision == "fp32":
        write_fp32(model, path, SIGNATURE)
    else:
        write_fp16(model, path, signature=SIGNATURE, example=example_of(SIGNATURE), feed=inputs_of(SIGNATURE))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ["resnet", "vit"])
def test_steps_stay_in_bounded_memory_and_engines_shrink(architecture: str, tmp_path: Path) -> None:
    calibration = write_batches(tmp_path / "calibration", [inputs_of(SIGNATURE, 16, seed) for seed in range(2)])
    paths = {precision: tmp_path / f"{precision}.onnx" for precision in ("fp32", "fp16", "int8")}
    peaks = {}
    for precision in ("fp32", "fp16"):
        peaks[precision] = run_step(trace, architecture, paths[precision], precision)[1].peak_bytes
    settings = {"calibration": calibration, "threads": 1, "work": tmp_path}
    peaks["int8"] = run_step(quantize_to_int8, paths["fp16"], paths["int8"], **settings)[1].peak_bytes
    sizes = {}
    for precision, path in paths.items():
        engine = tmp_path / f"{precision}.engine"
        builder = Builder("tensorrt_rtx", version_of("tensorrt_rtx"), "sm89")
        settings = {"builder": builder, "signature": SIGNATURE, "batches": (8, 16), "precision": precision}
        peaks[f"engine {precision}"] = run_step(build_engine, path, engine, **settings)[1].peak_bytes
        sizes[precision] = engine.stat().st_size
        assert run_outputs(path, **inputs_of(SIGNATURE, 1))["logits"].shape == (1, 1000)
    assert max(peaks[precision] for precision in paths) <= 1.4e9, peaks
    assert max(peaks.values()) <= 2e9, peaks
    assert sizes["fp16"] <= 0.55 * sizes["fp32"] and sizes["int8"] <= 0.40 * sizes["fp32"], sizes
