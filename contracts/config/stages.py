"""Sections `profile`, `export` and `register`: measurements, the exported model, and the gate before production."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.config.base import Auto, NotBool, PositiveInt, Section

# Fewer samples than this leave the ranges of activations to chance.
MIN_CALIBRATION_SAMPLES = 128
Runtime = Literal["tensorrt", "tensorrt_rtx", "onnx"]


def read_off(value: object) -> object:
    """Return the section that `profile: off` stands for; anything else as it is."""
    # False: `profile: false` says the same.
    return {"method": "off"} if value is False or value == "off" else value


class ProfileSection(Section):
    """Slot sizes and loader workers that the profile stage tries, and its budget."""

    method: Literal["auto", "sweep", "off"] = "auto"
    """`sweep`: measure loader and steps apart, then the most promising settings end to end. `auto`: likewise, and end
    as soon as the whole training at the measured rate takes less time than what is left to measure. `off`: measure
    nothing, and take the defaults (`profile: off` in a file is the same)."""
    budget_s: Annotated[float, Field(ge=1, le=86400), NotBool] = 600
    """Seconds for the whole stage: the start of the processes, measurements, traces and the report. No measurement
    outlasts it: the best so far is taken, or the defaults where the default was not measured, with a warning."""
    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to try; `auto`: an even share of the global batch per rank, and its halves, down to 8 or fewer; for a
    network with BatchNorm to 16."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one window of measurement, in seconds; a rate is the median over windows."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader workers to try; `auto`: 0, 1, 2, ... doubling up to the cores of a rank, on a GPU to those less
    one."""


class ExportSection(Section):
    """From the best checkpoint to the file that is served."""

    precision: Literal["fp32", "fp16", "int8"] = "fp16"
    """Precision of the served model; one that fails its gates falls back: int8 to fp16, fp16 to fp32."""
    runtime: Runtime | Literal["auto"] = "auto"
    """Runtime of the served model. tensorrt: a plan for Triton, which TensorRT builds on the GPU of this machine.
    tensorrt_rtx: an engine of TensorRT-RTX for workstations, built for `target`, which need not be present. onnx: the
    ONNX file for Triton, of which ONNX Runtime's TensorRT provider builds a plan when it loads. auto: tensorrt on a
    machine with a GPU and that package, else onnx."""
    target: Annotated[str, Field(min_length=1)] | None = None
    """GPU of tensorrt_rtx's engine: a name (t4, a10, l4, rtx-pro-6000, ...) or compute capability (sm89). None: the GPU
    of this machine, or without one l4."""
    max_batch: PositiveInt = 64
    """Largest batch size that an engine accepts."""
    allow_unproven: bool = False
    """Let an export whose served model never ran on a GPU be uploaded and go into production."""

    @property
    def batches(self) -> tuple[int, int]:
        """Batch size that an engine is tuned for, and the largest that it takes; the smallest is 1."""
        return min(8, self.max_batch), self.max_batch


class RegisterSection(Section):
    """The gate before production: each new export is compared with the one in production (docs/retraining.md)."""

    upload: bool = False
    """On Vertex AI: whether the export becomes a version of the model `run.name` in the registry; it needs
    `cloud.images.serving` (docs/vertex.md)."""
    tolerance: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.02
    """Loss of the headline metric on the test split with which a new export still goes into production, in units of the
    metric; where lower is better, a share of production's value."""
