"""Sections `profile`, `export` and `register`: measurements, the exported model, and the gate before production."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from contracts.config.base import Auto, NotBool, PositiveInt, Section

# Fewer samples than this leave the ranges of activations to chance.
MIN_CALIBRATION_SAMPLES = 128
# Fewer samples than this say little about a model's answers.
MIN_PROOF_SAMPLES = 64
Runtime = Literal["tensorrt", "onnxruntime_tensorrt", "tensorrt_rtx"]


def read_off(value: object) -> object:
    """Return the section that `profile: off` stands for; anything else as it is."""
    # False: `profile: false` says the same.
    return {"method": "off"} if value is False or value == "off" else value


class ProfileSection(Section):
    """What the profiling run tries, and how long it may take."""

    method: Literal["sweep", "grid", "off"] = "sweep"
    """`sweep`: measure loader and computing apart, predict, and measure the best of them end to end. `grid`: measure
    every combination end to end, for comparison. `off`: measure nothing, and take the defaults
    (`profile: off` in a file says the same)."""
    budget_s: Annotated[float, Field(ge=1, le=86400), NotBool] = 600
    """Seconds for all of it: the start of the processes, measuring, traces and the report. No measurement
    is begun that would end later, and one that does not end by then is given up: the best that was found is taken, or
    the defaults where fewer than two configurations were measured, with a warning."""
    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to try; `auto`: an even share of the global batch per rank, and what is left when it is cut in 2, 4,
    8, ... slots, and the largest that fits into memory."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one window of measurement, in seconds; a rate is the median over windows."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader processes to try; `auto`: 0, 1, 2, ... doubling below the cores of a rank, and those cores."""


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
    max_batch: PositiveInt = 64
    """Largest batch size that an engine accepts."""
    bench: bool = False
    """Measure latency and throughput of what was exported beside torch and ONNX Runtime, on this machine."""
    allow_unproven: bool = False
    """Let an export that never ran on its GPU, so that nothing proves it, be uploaded and go into production."""

    @property
    def batches(self) -> tuple[int, int, int]:
        """Smallest, tuned and largest batch size that an engine accepts; Triton sends single samples."""
        return 1, min(8, self.max_batch), self.max_batch

    @field_validator("precision", mode="before")
    @classmethod
    def _without_bf16(cls, given: object) -> object:
        if given == "bf16":
            raise ValueError(
                "fp32, fp16 or int8; bf16 is gone, since nothing without a GPU computes it: use fp16, which keeps in "
                "fp32 what it cannot hold"
            )
        return given


class RegisterSection(Section):
    """The gate before production: each new export is compared with the one in production (docs/retraining.md)."""

    upload: bool = False
    """On Vertex AI: whether the export becomes a version of the model `run.name` in the registry; it needs
    `cloud.images.serving` (docs/vertex.md)."""
    tolerance: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.02
    """Loss of the headline metric on the test split with which a new export still goes into production, in units of the
    metric; where lower is better, a share of production's value."""
