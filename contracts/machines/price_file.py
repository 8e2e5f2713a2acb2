"""A user's own prices: the YAML file of `--prices`, the same for machines and for Dataflow.

    source: our contract
    date: 2026-11-01
    prices:
      - {machine: g2-standard-12, region: europe-west4, on_demand: 1.10, spot: 0.45, flex_start: 0.80}
      - {machine: n1-standard-8, accelerator: NVIDIA_TESLA_T4, count: 2, on_demand: 1.10, spot: 0.45}
    dataflow: {vcpu_hour: 0.069, gb_hour: 0.0043, shuffle_gib: 0.011}

A price is that of a whole machine with its GPUs and all fees, in US dollars an hour. Either part may be left out.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contracts.config.base import NotBool
from contracts.errors import ConfigError
from contracts.machines.combinations import list_combinations
from contracts.machines.machine import ACCELERATORS
from contracts.machines.prices import DataflowPrices, PriceBook, PriceEntry
from contracts.resolve import read_yaml

_Price = Annotated[float, Field(gt=0, lt=100_000, allow_inf_nan=False), NotBool]
_PriceOrFree = Annotated[float, Field(ge=0, lt=100_000, allow_inf_nan=False), NotBool]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    region: str = ""
    accelerator: str = ""
    count: Annotated[int, Field(strict=True, ge=0, le=16)] = 0
    on_demand: _Price | None = None
    spot: _Price | None = None
    flex_start: _Price | None = None

    @model_validator(mode="after")
    def _plausible(self) -> _Row:
        if self.machine not in {machine.type for machine in list_combinations()}:
            raise ValueError(f"{self.machine} is no machine type of Vertex AI's custom jobs")
        if self.accelerator and self.accelerator not in ACCELERATORS:
            raise ValueError(f"{self.accelerator} is no accelerator of Vertex AI")
        if self.on_demand is None and self.spot is None and self.flex_start is None:
            raise ValueError(f"{self.machine} has none of on_demand, spot and flex_start")
        if self.on_demand is not None and self.spot is not None and self.on_demand < self.spot:
            raise ValueError(
                f"{self.machine}: on_demand {self.on_demand:g} is below spot {self.spot:g}; that mixes products"
            )
        return self


class _Dataflow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    vcpu_hour: _Price
    gb_hour: _PriceOrFree
    shuffle_gib: _PriceOrFree


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1)]
    date: datetime.date
    prices: list[_Row] = []
    dataflow: _Dataflow | None = None

    @model_validator(mode="after")
    def _has_a_price(self) -> _File:
        if not self.prices and self.dataflow is None:
            raise ValueError("neither prices nor dataflow")
        return self

    @field_validator("date", mode="before")
    @classmethod
    def _a_day(cls, value: object) -> object:
        # pydantic would take a number for seconds since 1970.
        if isinstance(value, (int, float)):
            raise ValueError("a date, e.g. 2026-11-01")
        return value


def read_price_file(path: Path) -> PriceBook:
    """Read a price file.

    Raises:
        ConfigError: It cannot be read, or a price is missing, unknown or implausible.
    """
    values = read_yaml(path)
    try:
        found = _File.model_validate(values)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in finding["loc"])
        raise ConfigError(
            f"price file {path}: {where or 'the file'}: {str(finding['msg']).removeprefix('Value error, ')}",
            allowed="source, date, and prices: a list of machine, region, accelerator, count, on_demand, spot and "
            "flex_start, in US dollars an hour for a whole machine; dataflow: vcpu_hour, gb_hour and shuffle_gib",
            todo="see docs/plan.md for an example",
        ) from None
    entries = tuple(PriceEntry(**row.model_dump()) for row in found.prices)
    dataflow = DataflowPrices(**found.dataflow.model_dump()) if found.dataflow else None
    return PriceBook(source=found.source, as_of=found.date.isoformat(), entries=entries, dataflow=dataflow)
