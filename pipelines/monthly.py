"""`shardline plan --hours-per-month H`: monthly cost of the training's machines by pricing model.

Spot and on-demand machines are paid per hour used, a commitment per hour of its term, a workstation by its price and
its power. Each comes with the hours per month from which it is cheaper than on demand. Disks, traffic and maintenance
are not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import AS_OF, COMMITTED_SOURCE, find_machine

HOURS_OF_MONTH = 730


@dataclass(frozen=True)
class Workstation:
    """The user's own machine."""

    usd: float
    """Its price."""
    watts: float
    """While it trains."""
    years: float
    """Until its price is written off."""
    usd_per_kwh: float


@dataclass(frozen=True)
class MonthlyCost:
    """Cost per month of one pricing model."""

    way: str
    usd: float | None
    """None: unknown."""
    break_even_hours: float | None
    """Hours a month from which it is cheaper than on demand; None: unknown, or it is always or never."""
    source: str


def monthly_costs(config: RunConfig, hours: float, workstation: Workstation | None = None) -> list[MonthlyCost]:
    """Return the cost per month of each pricing model.

    Args:
        config: The resolved configuration: `resources.machine`, `nodes`, and `cloud.region`.
        hours: Machine hours per month.
        workstation: None: omitted.

    Raises:
        ConfigError: Unknown machine type, impossible hours, or a workstation compared with several machines.
    """
    if not 0 < hours <= HOURS_OF_MONTH:
        raise ConfigError(
            f"--hours-per-month {hours:g}", allowed=f"more than 0, up to {HOURS_OF_MONTH}", todo="correct it"
        )
    machine, nodes, region = find_machine(config.resources.machine), config.resources.num_nodes, config.cloud.region
    if workstation is not None and nodes > 1:
        raise ConfigError(
            f"--own-usd with resources.nodes = {nodes}", allowed="one machine", todo="set resources.nodes=1"
        )
    spot = machine.price("SPOT", region)
    on_demand = machine.price("STANDARD", region) if "STANDARD" in machine.strategies else None
    costs = [
        MonthlyCost(way, None if price is None else price * nodes * hours, None, machine.price_source)
        for way, price in (("spot", spot), ("on demand", on_demand))
    ]
    for way, committed in zip(("1 year committed", "3 years committed"), machine.committed(region), strict=True):
        usd = break_even = None
        if committed is not None and on_demand is not None:
            # If only GPUs are committed, the rest of the machine is paid on demand.
            fixed, hourly = committed
            usd = nodes * (fixed * HOURS_OF_MONTH + hourly * hours)
            saved = on_demand - hourly
            needed = fixed * HOURS_OF_MONTH / saved
            break_even = needed if needed <= HOURS_OF_MONTH else None
        costs.append(MonthlyCost(way, usd, break_even, COMMITTED_SOURCE))
    if workstation is not None:
        fixed, hourly = workstation.usd / workstation.years / 12, workstation.watts / 1000 * workstation.usd_per_kwh
        above = None if on_demand is None else on_demand * nodes - hourly
        break_even = fixed / above if above is not None and above > 0 else None
        costs.append(
            MonthlyCost("workstation of your own", fixed + hourly * hours, break_even, "the options --own-...")
        )
    return costs


def print_monthly_costs(config: RunConfig, hours: float, costs: list[MonthlyCost], stream: TextIO) -> None:
    """Print the costs and their sources as a table."""
    machine, nodes = find_machine(config.resources.machine), config.resources.num_nodes
    print(f"{hours:g} hours a month of {nodes} x {machine.label} in {config.cloud.region} (estimate):", file=stream)
    for cost in costs:
        usd = "unknown" if cost.usd is None else f"{cost.usd:,.0f} USD"
        even = (
            "" if cost.break_even_hours is None else f"cheaper than on demand from {cost.break_even_hours:,.0f} hours"
        )
        print(f"  {cost.way:<24} {usd:>12}  {even}".rstrip(), file=stream)
    for source in dict.fromkeys(cost.source for cost in costs if cost.usd is not None):
        print(f"  prices: {source}", file=stream)
    if any(cost.usd is None for cost in costs):
        print(f"  unknown: no source of the table has it ({AS_OF})", file=stream)
