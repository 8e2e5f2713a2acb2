"""Section `export`: from the best checkpoint to an engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from contracts.config.base import PositiveInt, Section


class ExportSection(Section):
    """From the best checkpoint to an engine."""

    precision: Literal["fp32", "fp16"] = "fp16"
    """Precision carried by the ONNX graph that the engine is built from."""
    opset: Annotated[int, Field(strict=True, ge=20, le=24)] = 20
    """ONNX opset."""
    opt_batch: PositiveInt = 8
    """Batch size that the engine is tuned for."""
    max_batch: PositiveInt = 64
    """Largest batch size that the engine accepts; the smallest is 1."""

    @model_validator(mode="after")
    def _ordered(self) -> ExportSection:
        if self.opt_batch > self.max_batch:
            raise ValueError(f"opt_batch {self.opt_batch} is larger than max_batch {self.max_batch}")
        return self
