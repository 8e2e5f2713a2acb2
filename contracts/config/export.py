"""Section `export`: from the best checkpoint to engines with a proof."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from contracts.config.base import PositiveInt, Section

# Fewer samples than this leave the ranges of activations to chance.
MIN_CALIBRATION_SAMPLES = 128
# Fewer samples than this say little about a model's answers.
MIN_PROOF_SAMPLES = 64
Runtime = Literal["tensorrt", "onnxruntime_tensorrt", "tensorrt_rtx"]


class ExportSection(Section):
    """From the best checkpoint to engines."""

    precision: Literal["fp32", "fp16", "int8"] = "fp16"
    """Precision carried by the ONNX graph that the engines are built from; one that fails its gates falls back: int8 to
    fp16, fp16 to fp32."""
    runtime: Runtime | Literal["auto"] = "auto"
    """What serves the model. tensorrt: a plan that TensorRT builds on the GPU that serves. onnxruntime_tensorrt: the
    ONNX file, of which Triton's ONNX Runtime builds such a plan when it loads. tensorrt_rtx: engines of TensorRT-RTX
    for workstations, which need not be present, beside the ONNX file for Triton. auto: tensorrt on a machine with a GPU
    and that package, else onnxruntime_tensorrt."""
    targets: Annotated[list[str], Field(max_length=1)] = []
    """Of tensorrt_rtx: the GPU to build an engine for, by name (t4, a10, l4, rtx-pro-6000, ...) or compute capability
    (sm89). Empty: the GPU of this machine, or without one l4."""
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
    proof_samples: Annotated[int, Field(strict=True, ge=MIN_PROOF_SAMPLES)] = 512
    """Most samples of the test split that the gates run, the same share of each class, drawn by the seed."""
    bench: bool = False
    """Measure latency and throughput of what was exported beside torch and ONNX Runtime, on this machine."""
    allow_unproven: bool = False
    """Let engines pass that never ran on their GPU, so that nothing proves them, where contracts.proof.require_proven
    is asked: before an upload."""

    @field_validator("precision", mode="before")
    @classmethod
    def _without_bf16(cls, given: object) -> object:
        if given == "bf16":
            raise ValueError(
                "fp32, fp16 or int8; bf16 is gone, since nothing without a GPU computes it: use fp16, which keeps in "
                "fp32 what it cannot hold"
            )
        return given

    @model_validator(mode="after")
    def _ordered(self) -> ExportSection:
        if not self.min_batch <= self.opt_batch <= self.max_batch:
            raise ValueError(
                f"1 <= min_batch <= opt_batch <= max_batch; given are min_batch {self.min_batch}, "
                f"opt_batch {self.opt_batch}, max_batch {self.max_batch}"
            )
        return self
