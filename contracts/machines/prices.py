"""What a machine costs in an hour, as a range: an estimate from a dated table, or from the user's own prices.

    STANDARD      from Compute Engine's on-demand price to that price with Vertex AI's management fee
    SPOT          from the spot price to the same upper end: spot prices change up to once a day, below on-demand
    FLEX_START    unknown: its prices are in no table that was at hand; the user's own file may have them

Lessons of public tables are kept: a row whose on-demand price is below its spot price mixes products and is refused,
the price of a GPU is nothing without its host's, and what no source says is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.config.resources import Strategy
from contracts.machines import price_table as table
from contracts.machines.machine import Machine


@dataclass(frozen=True)
class PriceRange:
    """US dollars an hour, from `low_usd_per_h` to `high_usd_per_h`."""

    low_usd_per_h: float
    high_usd_per_h: float
    source: str
    as_of: str
    """Date of the prices, or of when they were read."""
    assumptions: tuple[str, ...] = ()
    """What the range rests on besides its source."""

    def times(self, number: int) -> PriceRange:
        """Return the price of so many machines."""
        return PriceRange(
            self.low_usd_per_h * number, self.high_usd_per_h * number, self.source, self.as_of, self.assumptions
        )


@dataclass(frozen=True)
class PriceEntry:
    """Prices that a user gave for one machine, in US dollars an hour, all its GPUs and fees with it."""

    machine: str
    on_demand: float | None = None
    spot: float | None = None
    flex_start: float | None = None
    accelerator: str = ""
    """Empty: whatever the machine brings."""
    count: int = 0
    """GPUs; 0: whatever the machine brings."""
    region: str = ""
    """Empty: all regions."""

    def fits(self, machine: Machine, region: str) -> bool:
        """Return whether it speaks for this machine in this region."""
        return (
            self.machine == machine.type
            and self.region in ("", region)
            and self.accelerator in ("", machine.accelerator_type)
            and self.count in (0, machine.accelerator_count)
        )


@dataclass(frozen=True)
class DataflowPrices:
    """US dollars for what a Dataflow job is billed by."""

    vcpu_hour: float
    gb_hour: float
    shuffle_gib: float
    """For each GiB that the shuffle processes."""


@dataclass(frozen=True)
class PriceBook:
    """A user's own prices; they win over the table."""

    source: str
    as_of: str
    """Date of the prices, ISO 8601."""
    entries: tuple[PriceEntry, ...]
    dataflow: DataflowPrices | None = None

    def find(self, machine: Machine, region: str) -> PriceEntry | None:
        """Return the entry that speaks for a machine; one that names the region wins."""
        fitting = [entry for entry in self.entries if entry.fits(machine, region)]
        return max(fitting, key=lambda entry: (bool(entry.region), bool(entry.accelerator)), default=None)


def hourly_price(machine: Machine, strategy: Strategy, region: str, book: PriceBook | None = None) -> PriceRange | None:
    """Return what one machine costs in an hour; None: unknown.

    Args:
        machine: With its GPUs.
        strategy: How it is asked for.
        region: Where.
        book: The user's own prices.
    """
    if book is not None and (entry := book.find(machine, region)) is not None:
        return _from_entry(entry, strategy, book)
    found = _from_table(machine, region)
    if found is None:
        return None
    on_demand, spot, source = found
    if on_demand < spot or strategy == "FLEX_START":
        return None
    high = on_demand * (1 + table.MANAGEMENT_FEE)
    assumptions = [table.FEE_ASSUMPTION, "Compute Engine's prices; disks and network are not in it"]
    low = on_demand
    if strategy == "SPOT":
        low = spot
        assumptions.insert(0, "the upper end is the on-demand price: spot prices change up to once a day")
    return PriceRange(low, high, source.name, source.as_of, tuple(assumptions))


def _from_entry(entry: PriceEntry, strategy: Strategy, book: PriceBook) -> PriceRange | None:
    own = {"STANDARD": entry.on_demand, "SPOT": entry.spot, "FLEX_START": entry.flex_start}[strategy]
    if own is None:
        return None
    # What was spot today may be dearer tomorrow, up to on-demand.
    high = entry.on_demand if strategy == "SPOT" and entry.on_demand is not None else own
    return PriceRange(own, high, book.source, book.as_of)


def _from_table(machine: Machine, region: str) -> tuple[float, float, table.Source] | None:
    """Return on-demand and spot price of a whole machine, and their source."""
    per_gpu = table.WHOLE_PER_GPU.get((machine.accelerator_type, region))
    if per_gpu is not None:
        on_demand, spot, source = per_gpu
        return on_demand * machine.gpus, spot * machine.gpus, source
    host = table.find_host(machine.type, machine.vcpus, machine.memory_gb, region)
    if host is None:
        return None
    if not machine.accelerator_type:
        return (*host, table.SKYPILOT)
    gpu = table.find_gpu(machine.accelerator_type, region)
    if gpu is None:
        return None
    return host[0] + gpu[0] * machine.gpus, host[1] + gpu[1] * machine.gpus, table.SKYPILOT
