"""Section `export`: from the best checkpoint to engines with a proof."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from contracts.config.base import PositiveInt, Section

# Fewer samples than this leave the ranges of activations to chance.
MIN_CALIBRATION_SAMPLES = 128


class ExportSection(Section):
    """From the best checkpoint to engines."""

    precision: Literal["fp32", "fp16", "int8", "bf16"] = "fp16"
    """Precision carried by the ONNX graph that the engines are built from; one that fails its gates falls back: int8 to
    fp16, fp16 to fp32. bf16 needs nvidia-modelopt."""
    targets: Annotated[list[str], Field(max_length=16)] = []
    """GPUs to build engines for, by name (t4, a100, a10, l4, rtx-pro-6000, ...) or compute capability (sm89). Empty:
    the GPU of this machine, or without one a100, a10, l4 and rtx-pro-6000."""
    opset: Annotated[int, Field(strict=True, ge=20, le=24)] = 20
    """ONNX opset."""
    min_batch: PositiveInt = 1
    """Smallest batch size that an engine accepts; Triton needs 1."""
    opt_batch: PositiveInt = 8
    """Batch size that an engine is tuned for."""
    max_batch: PositiveInt = 64
    """Largest batch size that an engine accepts."""
    calibration_samples: Annotated[int, Field(strict=True, ge=MIN_CALIBRATION_SAMPLES)] = 512
    """Training images whose activations decide int8's scales and which nodes fit into fp16, drawn by the seed."""
    bench: bool = False
    """Measure latency and throughput of what was exported beside torch and ONNX Runtime, on this machine."""
    allow_unproven: bool = False
    """Let engines pass that never ran on their GPU, so that nothing proves them, where contracts.proof.require_proven
    is asked: before an upload."""

    @model_validator(mode="after")
    def _ordered(self) -> ExportSection:
        if not self.min_batch <= self.opt_batch <= self.max_batch:
            raise ValueError(
                f"1 <= min_batch <= opt_batch <= max_batch; given are min_batch {self.min_batch}, "
                f"opt_batch {self.opt_batch}, max_batch {self.max_batch}"
            )
        return self
