"""Signature of an exported model: its inputs and outputs by name, and the range of each dimension that may vary."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from contracts.artifacts.document import Document

BATCH = "batch"
"""Name of the first dimension of every input and output; section `export` has its range."""

_SAVEZ_ARGUMENTS = {"file", "allow_pickle"}

DType = Literal["float32", "int64", "int32", "uint8", "bool"]


class Dimension(Document):
    """Range of a dimension that may vary."""

    min: Annotated[int, Field(ge=1)]
    opt: Annotated[int, Field(ge=1)]
    """What engines are tuned for."""
    max: Annotated[int, Field(ge=1)]
    multiple: Annotated[int, Field(ge=1)] = 1
    """Sizes are multiples of it."""

    @model_validator(mode="after")
    def _ordered(self) -> Dimension:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min <= opt <= max; given are {self.min}, {self.opt}, {self.max}")
        if any(size % self.multiple for size in (self.min, self.opt, self.max)):
            raise ValueError(f"min, opt and max are multiples of {self.multiple} (multiple)")
        return self


class TensorSpec(Document):
    """Type and shape of a tensor."""

    dtype: DType
    shape: Annotated[list[Annotated[int, Field(ge=1)] | str], Field(min_length=1)]
    """Sizes, and names of dimensions that vary; the first is `batch`."""

    @model_validator(mode="after")
    def _batch_first(self) -> TensorSpec:
        if self.shape[0] != BATCH:
            raise ValueError(f"the first dimension is {self.shape[0]!r}, not {BATCH!r}")
        return self


class OutputSpec(TensorSpec):
    """Type and shape of an output, and what its numbers are."""

    compare: Literal["values", "classes"] = "values"
    """`classes`: scores of classes along the second dimension; a model that gives one score for all of them is not
    exported. `values`: any other numbers."""


class Signature(Document):
    """Inputs and outputs of a model: it takes its inputs by position, in this order, and returns its outputs so."""

    inputs: Annotated[dict[str, TensorSpec], Field(min_length=1)]
    outputs: Annotated[dict[str, OutputSpec], Field(min_length=1)]
    dimensions: dict[str, Dimension] = Field(default={})
    """Range of each dimension that varies, besides `batch`."""

    @model_validator(mode="after")
    def _check_names(self) -> Signature:
        specs = [*self.inputs.items(), *self.outputs.items()]
        used = {size for _, spec in specs for size in spec.shape if isinstance(size, str)} - {BATCH}
        if missing := sorted(used - set(self.dimensions)):
            raise ValueError(f"no range of {', '.join(missing)} in dimensions")
        if reserved := sorted({name for name, _ in specs} & _SAVEZ_ARGUMENTS):
            raise ValueError(f"{', '.join(reserved)}: numpy.savez, which writes arrays by name, keeps it for itself")
        if shared := sorted(set(self.inputs) & set(self.outputs)):
            raise ValueError(f"{', '.join(shared)} is an input and an output")
        return self
